/* The scan on a CPU in one pass over the vocabulary; `native.py` compiles and calls it, `reference.py` says what it means.

A position is walked in chunks that stay in the first cache, with running maxima and sums of the posterior, the reference
and the readout. So its logits are read once, and its reference is read and written once. Sums leave out the proposal,
whose share is then exact even where it is almost 1. Loops are plain C: the compiler turns them into vector instructions
of whatever CPU this is. A position depends on nothing but itself, so neither neighbours nor threads change a result. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "floats.h"

#define CHUNK 1024
#define LOWEST -1e4f     /* SUPPRESSED in reference.py */
#define SMOOTHING 1e-12f /* as in reference.py */
#define NOTHING -3e38f   /* below every logit, and finite */

enum { PEAK, CONFIDENCE, MARGIN, GAP, ENTROPY, KL, REFERENCE, READOUT, OTHERS, REFERENCE_OTHERS, READOUT_OTHERS };

/* One softmax, as far as it is known: the largest value; the proposal's; and of all other tokens, relative to the
largest value, the sum of exponentials, and that sum weighted by value - peak and by the logarithm of the last posterior. */
struct mass {
    double peak, own, others, moment, cross, own_before;
};

static const struct mass EMPTY = {NOTHING, -INFINITY, 0.0, 0.0, 0.0, 0.0};

/* Below this, exponentials count as nothing. `volatile`, because compilers that know the number make it a branch. */
static const volatile float DEEPEST = -87.0f;

/* log(x) for normal x > 0, to 1e-7 relative: x = 2^n (1 + r) with 1 + r between sqrt(1/2) and sqrt(2). */
static inline float fast_log(float x) {
    uint32_t bits = to_bits(x) - 0x3f3504f3u;
    float whole = (float)((int32_t)bits >> 23), rest = from_bits((bits & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float made = 7.0376836292e-2f, square = rest * rest;
    made = made * rest - 1.1514610310e-1f;
    made = made * rest + 1.1676998740e-1f;
    made = made * rest - 1.2420140846e-1f;
    made = made * rest + 1.4249322787e-1f;
    made = made * rest - 1.6668057665e-1f;
    made = made * rest + 2.0000714765e-1f;
    made = made * rest - 2.4999993993e-1f;
    made = made * rest + 3.3333331174e-1f;
    made = made * rest * square - 0.5f * square + rest;
    return made + whole * 0.693147180560f;
}

/* The former proposal becomes one of the others. */
static void join(struct mass *mass) {
    double weight = exp(mass->own - mass->peak);
    if (weight > 0.0) {
        mass->others += weight;
        mass->moment += weight * (mass->own - mass->peak);
        mass->cross += weight * mass->own_before;
    }
}

/* Add a chunk, whose largest value is `top`. With `before`, logs of the last posterior, the weighted sums as well. */
static void add(struct mass *mass, const float *values, const float *before, int64_t count, float top) {
    if (top > mass->peak) {
        double scale = exp(mass->peak - top);
        mass->moment = scale * (mass->moment + mass->others * (mass->peak - top));
        mass->cross *= scale;
        mass->others *= scale;
        mass->peak = top;
    }
    float peak = (float)mass->peak, deepest = DEEPEST, sum = 0.0f, moment = 0.0f, cross = 0.0f;
    if (before) {
#pragma omp simd reduction(+ : sum, moment, cross)
        for (int64_t i = 0; i < count; i++) {
            float x = values[i] - peak, bounded = deepest > x ? deepest : x, weight = fast_exp(bounded);
            sum += weight;
            moment += weight * bounded;
            cross += weight * before[i];
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < count; i++) {
            float x = values[i] - peak;
            sum += fast_exp(deepest > x ? deepest : x);
        }
    }
    mass->others += sum;
    mass->moment += moment;
    mass->cross += cross;
}

/* Take the proposal out of a chunk before it is added. */
static void take(struct mass *mass, float *values, int64_t at) {
    mass->own = values[at];
    values[at] = -INFINITY;
}

static float largest(const float *values, int64_t count) {
    float top = NOTHING;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < count; i++) top = values[i] > top ? values[i] : top;
    return top;
}

static int first_equal(const float *values, int count, float wanted) {
    int place = count;
#pragma omp simd reduction(min : place)
    for (int i = 0; i < count; i++) place = values[i] == wanted && i < place ? i : place;
    return place;
}

static double share(const struct mass *mass) {
    double own = exp(mass->own - mass->peak);
    return own / (own + mass->others);
}

static double share_of_others(const struct mass *mass) {
    return mass->others / (exp(mass->own - mass->peak) + mass->others);
}

/* Write what stands where nothing is observed: token -1, no probability, and of the last two scalars everything. */
void tacg_blank(int64_t *token, float *scalars, int64_t count) {
    for (int64_t i = 0; i < count; i++) token[i] = -1;
    for (int64_t i = 0; i < (READOUT_OTHERS + 1) * count; i++) scalars[i] = i < REFERENCE_OTHERS * count ? 0.0f : 1.0f;
}

/* Scan positions from `start` to `stop`, and return how many of them have unusable logits (NaN, +inf, only -inf).

narrow           the logits are bfloat16; detailed: measure entropy, and divergence if there is `previous`
places           where a position is on boards of `count` places
rows, slots      which of the logits belong to it, and where its history is (NULL: as listed; at its place)
first, observed  boards: whether it has no history yet, and whether to read it at all
proposal         its token (NULL: the argmax)
reference        EMA of the logits, or NULL; previous: logits of the last step, or NULL, and `norm`, their log-sum-exp
token, scalars   the results, at the places that are observed: [count] and [11, count]
blank            write them elsewhere as well; only for one part, before all others */
int64_t tacg_scan(const void *logits, int64_t stride, int narrow, int detailed, int64_t size, const int64_t *places,
                  const int64_t *rows, const int64_t *slots, const uint8_t *first, const uint8_t *observed,
                  const int64_t *proposal, float *reference, float *previous, float *norm, float w, float beta,
                  int64_t *token, float *scalars, int64_t count, int blank, int64_t start, int64_t stop) {
    if (blank) tacg_blank(token, scalars, count);
    float z[CHUNK], ref[CHUNK], out[CHUNK], before[CHUNK] = {0};
    int64_t unusable = 0;
    for (int64_t p = start; p < stop; p++) {
        const int64_t place = places ? places[p] : p, slot = slots ? slots[p] : place, row = rows ? rows[p] : p;
        if (!observed[place]) continue;
        const float *wide = (const float *)logits + row * stride;
        const uint16_t *half = (const uint16_t *)logits + row * stride;
        float *result = scalars + place;
        int begins = first[place];
        struct mass now = EMPTY, past = EMPTY, readout = EMPTY;
        float second = NOTHING;
        int64_t best = proposal ? proposal[p] : 0;
        for (int64_t at = 0; at < size; at += CHUNK) {
            int64_t n = size - at < CHUNK ? size - at : CHUNK;
            float top = NOTHING, top_past = NOTHING, top_readout = NOTHING;
            if (narrow)
                for (int64_t i = 0; i < n; i++) z[i] = from_bits((uint32_t)half[at + i] << 16);
            const float *source = narrow ? z : wide + at;
#pragma omp simd reduction(max : top)
            for (int64_t i = 0; i < n; i++) {
                float value = source[i] < LOWEST ? LOWEST : source[i];
                z[i] = value;
                top = value > top ? value : top;
            }
            if (reference) {
                float *kept = reference + slot * size + at, decay = begins ? 0.0f : beta, rest = 1.0f - decay;
                if (begins) memcpy(kept, z, n * sizeof *z);
#pragma omp simd reduction(max : top_past, top_readout)
                for (int64_t i = 0; i < n; i++) {
                    float value = kept[i], ahead = z[i] + w * (z[i] - value);
                    ref[i] = value;
                    out[i] = ahead;
                    top_past = value > top_past ? value : top_past;
                    top_readout = ahead > top_readout ? ahead : top_readout;
                    kept[i] = decay * value + rest * z[i];
                }
            }
            if (previous) {
                float *kept = previous + slot * size + at, last = begins ? INFINITY : norm[slot], deepest = DEEPEST;
                if (begins) memcpy(kept, z, n * sizeof *z);
#pragma omp simd
                for (int64_t i = 0; i < n; i++) {
                    float value = kept[i] - last;
                    before[i] = fast_log(fast_exp(deepest > value ? deepest : value) + SMOOTHING);
                    kept[i] = z[i];
                }
            }
            int leads = top > now.peak, here = proposal ? best >= at && best < at + n : leads;
            if (leads) {
                int64_t i = first_equal(z, (int)n, top);
                z[i] = NOTHING;
                float runner_up = largest(z, n);
                z[i] = top;
                second = now.peak > runner_up ? (float)now.peak : runner_up;
                if (!proposal) best = at + i;
            } else if (top > second) {
                second = top;
            }
            if (here && !proposal) join(&now), join(&past), join(&readout);
            if (here) {
                take(&now, z, best - at);
                now.own_before = before[best - at];
            }
            add(&now, z, detailed ? before : NULL, n, top);
            if (reference) {
                if (here) take(&past, ref, best - at), take(&readout, out, best - at);
                add(&past, ref, NULL, n, top_past);
                add(&readout, out, NULL, n, top_readout);
            }
        }
        double own = exp(now.own - now.peak), others = now.others, total = own + others;
        join(&now); /* entropy and divergence are sums over all tokens */
        int usable = total == total && now.peak > LOWEST && now.peak < INFINITY;
        double entropy = log(total) - now.moment / total, divergence = -entropy - now.cross / total;
        second = second < LOWEST ? LOWEST : second;
        token[place] = best;
        result[PEAK * count] = total == total || now.peak == INFINITY ? (float)now.peak : NAN;
        result[CONFIDENCE * count] = usable ? (float)(own / total) : NAN;
        result[MARGIN * count] = (float)((1.0 - exp(second - now.peak)) / total);
        result[GAP * count] = (float)(now.peak - second);
        result[ENTROPY * count] = (float)entropy;
        result[KL * count] = divergence > 0.0 ? (float)divergence : 0.0f;
        result[REFERENCE * count] = (float)share(&past);
        result[READOUT * count] = (float)share(&readout);
        result[OTHERS * count] = (float)(others / total);
        result[REFERENCE_OTHERS * count] = (float)share_of_others(&past);
        result[READOUT_OTHERS * count] = (float)share_of_others(&readout);
        if (previous) norm[slot] = (float)(now.peak + log(total));
        unusable += !usable;
    }
    return unusable;
}
