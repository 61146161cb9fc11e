/* What both kernels do with the bits of a float. */

#include <stdint.h>
#include <string.h>

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* exp(x) for -87 <= x <= 0, to 2e-7; NaN stays NaN. Adding 1.5 * 2^23 rounds to a whole number in the lowest bits.
The polynomial's terms are paired so that few of them wait for each other. */
static inline float fast_exp(float x) {
    const float shift = 12582912.0f;
    float shifted = x * 1.44269504f + shift, whole = shifted - shift;
    float rest = x - whole * 0.693147181f, square = rest * rest;
    float high = (0.04189055f + 0.00831248f * rest) * square + (0.49999229f + 0.16667116f * rest);
    return (high * square + (1.0f + rest)) * from_bits((to_bits(shifted) - to_bits(shift) + 127u) << 23);
}
