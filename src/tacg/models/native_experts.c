/* Experts on a CPU; `native_experts.py` compiles and calls it, `Experts.one_by_one` says what it means.

Tokens lie side by side in the lanes of vectors, and every output is a sum over k in order, in parts of CHUNK. So a token
is rounded in the same way whatever its neighbours and however many they are, and nothing has to be filled up but lanes.
A few rows of a table at a time are copied to the first cache, widened to float32 on the way, and meet the tokens of
their expert there; meanwhile the next ones are fetched. So each weight is read from memory once for up to BLOCK tokens,
in the type that it is stored in. The compiler chooses instructions for the vectors; only products of bfloat16 are named:
where a CPU multiplies pairs of them, nothing is widened, and a lane holds two neighbours of one token. */

#include <stdint.h>
#include <string.h>

#include "../scan/floats.h"

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define ROWS 8 /* of a table at a time: with three vectors of tokens, their sums stay in 32 registers */
#else
#define ROWS 4 /* in 16 registers */
#endif
#define BLOCK 96  /* tokens of an expert at a time: they stay in the second cache; native_experts.py knows this */
#define CHUNK 256 /* weights of a row at a time */
#define STRIDE (CHUNK + 16) /* else all rows would compete for the same places of the cache */
#define TILES (BLOCK / LANES)

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float tile[ROWS][LANES];

#if defined(__AVX512BF16__)
#include <immintrin.h>
#define PAIRS 1
/* sum + the products of both members of a pair, in float32 */
static inline vector with_pairs(vector sum, float weights, vector tokens) {
    return (vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_ps(weights), (__m512bh)tokens);
}
#else
#define PAIRS 0
static inline vector with_pairs(vector sum, float weights, vector tokens) { return sum + weights * tokens; }
#endif

/* Whether this CPU multiplies pairs of bfloat16. Then x is bfloat16 as well if weights are, and sizes are even. */
int tacg_pairs(void) { return PAIRS; }

/* Weights [rows, size] in float32; if `narrow`, in bfloat16, or in pairs of them where those are multiplied. */
struct table {
    const char *weights;
    int64_t rows, size;
    int narrow;
};

static struct table table_of(const char *weights, int64_t rows, int64_t size, int narrow) {
    return (struct table){weights, rows, PAIRS && narrow ? size / 2 : size, narrow};
}

/* To the nearest bfloat16, ties to even. */
static inline float rounded(float value) {
    uint32_t bits = to_bits(value);
    return value == value ? from_bits((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u) : value;
}

/* Rows [rows, LANES] of rounded values -> [rows / 2, LANES], with the even rows' values in the lower halves. */
static inline void join_pairs(const float *x, int64_t rows, float *made) {
    for (int64_t r = 0; r < rows; r += 2)
        for (int64_t i = 0; i < LANES; i++)
            made[r / 2 * LANES + i] = from_bits(to_bits(x[r * LANES + i]) >> 16 | to_bits(x[(r + 1) * LANES + i]));
}

/* x / (1 + exp(-x)), by way of exp(-|x|). */
static inline float silu(float x) {
    float depth = x < 0.0f ? x : -x, power = fast_exp(-87.0f > depth ? -87.0f : depth);
    return x * ((x < 0.0f ? power : 1.0f) / (1.0f + power));
}

/* Transpose a matrix of `rows` rows, a power of 2, and return where it is then: there or in `other`.

Interleaving the two halves, as in a riffle, turns [rows, columns] into [rows / 2, columns, 2]. */
static inline const float *transpose(float *restrict matrix, float *restrict other, int rows, int size) {
    if (rows == 1) return matrix;
    for (int i = 0; i < size / 2; i++) {
        other[2 * i] = matrix[i];
        other[2 * i + 1] = matrix[i + size / 2];
    }
    return transpose(other, matrix, rows / 2, size);
}

/* Up to LANES rows of x [N, size], side by side: [size, LANES]. Lanes that are left over hold zeros. */
static void side_by_side(const float *x, int64_t size, const int64_t *token, int64_t count, float *made) {
    float square[LANES * LANES], other[LANES * LANES];
    int64_t whole = size / LANES * LANES;
    for (int64_t k = 0; k < whole; k += LANES) {
        for (int64_t lane = 0; lane < LANES; lane++) {
            if (lane < count) memcpy(square + lane * LANES, x + token[lane] * size + k, LANES * sizeof *x);
            else memset(square + lane * LANES, 0, LANES * sizeof *x);
        }
        memcpy(made + k * LANES, transpose(square, other, LANES, LANES * LANES), sizeof square);
    }
    for (int64_t k = whole; k < size; k++)
        for (int64_t lane = 0; lane < LANES; lane++)
            made[k * LANES + lane] = lane < count ? x[token[lane] * size + k] : 0.0f;
}

/* Add to `sums` the products of ROWS rows of weights with `tiles` times LANES tokens, which are `far` floats apart.
`ahead` moves by `pace` bytes with each weight: what will be needed next. It may lie behind the table; that does no harm. */
static inline __attribute__((always_inline)) void multiply(const float *weights, const float *x, int64_t far,
                                                           int64_t size, tile *sums, const int tiles, const int pairs,
                                                           const char *ahead, int64_t pace) {
    vector sum[3][ROWS];
    for (int t = 0; t < tiles; t++)
        for (int r = 0; r < ROWS; r++) sum[t][r] = (vector){0};
    for (int64_t k = 0; k < size; k++) {
        __builtin_prefetch(ahead + k * pace, 0, 2);
        vector here[3];
        for (int t = 0; t < tiles; t++) here[t] = *(const vector *)(x + t * far + k * LANES);
        for (int r = 0; r < ROWS; r++)
            for (int t = 0; t < tiles; t++)
                if (pairs) sum[t][r] = with_pairs(sum[t][r], weights[r * STRIDE + k], here[t]);
                else sum[t][r] += weights[r * STRIDE + k] * here[t];
    }
    for (int t = 0; t < tiles; t++)
        for (int r = 0; r < ROWS; r++) *(vector *)sums[t][r] += sum[t][r];
}

static inline __attribute__((always_inline)) void multiplied(const float *weights, const float *x, int64_t far,
                                                             int64_t size, tile *sums, const int tiles, int pairs,
                                                             const char *ahead, int64_t pace) {
    if (pairs) multiply(weights, x, far, size, sums, tiles, 1, ahead, pace);
    else multiply(weights, x, far, size, sums, tiles, 0, ahead, pace);
}

/* Rows `first` to `first + ROWS` of a table times all tokens of a block, which lie side by side. */
static void product(const struct table *table, int64_t first, const float *x, int64_t tiles, const char *ahead,
                    tile *sums) {
    float weights[ROWS * STRIDE] __attribute__((aligned(64)));
    int pairs = PAIRS && table->narrow;
    int64_t size = table->size, width = table->narrow && !pairs ? 2 : 4;
    memset(sums, 0, tiles * sizeof *sums);
    for (int64_t at = 0; at < size; at += CHUNK) {
        int64_t n = size - at < CHUNK ? size - at : CHUNK;
        for (int64_t r = 0; r < ROWS; r++) {
            const char *row = table->weights + ((first + r) * size + at) * width;
            float *made = weights + r * STRIDE;
            if (first + r >= table->rows) {
                memset(made, 0, n * sizeof *made);
            } else if (width == 2) {
                const uint16_t *half = (const uint16_t *)row;
                for (int64_t i = 0; i < n; i++) made[i] = from_bits((uint32_t)half[i] << 16);
            } else {
                memcpy(made, row, n * sizeof *made);
            }
        }
        int64_t pace = ROWS * width;
        const char *next = ahead + at * pace;
        for (int64_t t = 0, step; t < tiles; t += step, pace = 0) {
            const float *tokens = x + (t * size + at) * LANES;
            step = tiles - t == 3 || tiles - t > 4 ? 3 : tiles - t > 1 ? 2 : 1; /* not 3 + 1: one waits for its sums */
            if (step == 3) multiplied(weights, tokens, size * LANES, n, sums + t, 3, pairs, next, pace);
            else if (step == 2) multiplied(weights, tokens, size * LANES, n, sums + t, 2, pairs, next, pace);
            else multiplied(weights, tokens, size * LANES, n, sums + t, 1, pairs, next, pace);
        }
    }
}

/* An expert's tokens, at most BLOCK at a time. */
struct block {
    int64_t expert, start, count, tiles, tiles_before, number;
};

static int next_block(struct block *block, const int64_t *ends, int64_t experts) {
    block->tiles_before += block->tiles;
    block->start += block->count;
    block->number++;
    while (block->expert < experts && ends[block->expert] <= block->start) block->expert++;
    if (block->expert == experts) return 0;
    int64_t left = ends[block->expert] - block->start;
    block->count = left < BLOCK ? left : BLOCK;
    block->tiles = (block->count + LANES - 1) / LANES;
    return 1;
}

static const struct block BEFORE_ALL = {0, 0, 0, 0, 0, -1};

/* SiLU(gate) * up of every token and each of its experts, for one of `parts` parts of the blocks.

x           [N, width], in float32; in bfloat16 if pairs of it are multiplied
gate, up    [experts, inner, width], bfloat16 if `narrow`
token       of each pair of a token and an expert, sorted by expert; those of expert e end before ends[e]
columns     room for BLOCK * width floats
hidden      the result, side by side: for every block and LANES of its tokens [inner, LANES] */
void tacg_gate_up(const float *x, const char *gate, const char *up, int64_t experts, int64_t inner, int64_t width,
                  int narrow, const int64_t *token, const int64_t *ends, float *columns, float *hidden, int64_t part,
                  int64_t parts) {
    tile gates[TILES], ups[TILES];
    int64_t total = 0, bytes = inner * width * (narrow ? 2 : 4), panel = ROWS * width * (narrow ? 2 : 4);
    for (struct block block = BEFORE_ALL; next_block(&block, ends, experts);) total++;
    for (struct block block = BEFORE_ALL; next_block(&block, ends, experts);) {
        if (block.number < total * part / parts || block.number >= total * (part + 1) / parts) continue;
        struct table first = table_of(gate + block.expert * bytes, inner, width, narrow);
        struct table second = table_of(up + block.expert * bytes, inner, width, narrow);
        for (int64_t t = 0; t < block.tiles; t++)
            side_by_side(x, first.size, token + block.start + t * LANES, block.count - t * LANES,
                         columns + t * first.size * LANES);
        for (int64_t row = 0; row < inner; row += ROWS) {
            const char *here = second.weights + row / ROWS * panel, *next = first.weights + (row / ROWS + 1) * panel;
            product(&first, row, columns, block.tiles, here, gates);
            product(&second, row, columns, block.tiles, next, ups);
            int64_t rows = inner - row < ROWS ? inner - row : ROWS;
            for (int64_t t = 0; t < block.tiles; t++) {
                float *made = hidden + ((block.tiles_before + t) * inner + row) * LANES, *a = gates[t][0], *b = ups[t][0];
                if (PAIRS && narrow) made -= (made - hidden) / 2;
                float *to = PAIRS && narrow ? a : made;
                if (narrow)
                    for (int64_t i = 0; i < rows * LANES; i++)
                        to[i] = rounded(rounded(silu(rounded(a[i]))) * rounded(b[i]));
                else
                    for (int64_t i = 0; i < rows * LANES; i++) to[i] = silu(a[i]) * b[i];
                if (PAIRS && narrow) join_pairs(a, rows, made);
            }
        }
    }
}

/* Add the products of `hidden` and down [experts, width, inner], times `scale` of each pair, to mixed [N, width].

For one of `parts` parts of the columns, because a token's experts are added in order. */
void tacg_down(const float *hidden, const char *down, int64_t experts, int64_t inner, int64_t width, int narrow,
               const int64_t *token, const int64_t *ends, const float *scale, float *mixed, int64_t part, int64_t parts) {
    tile sums[TILES];
    float other[ROWS * LANES];
    int64_t panels = (width + ROWS - 1) / ROWS, panel = ROWS * inner * (narrow ? 2 : 4);
    for (struct block block = BEFORE_ALL; next_block(&block, ends, experts);) {
        struct table table = table_of(down + block.expert * width * inner * (narrow ? 2 : 4), width, inner, narrow);
        for (int64_t row = panels * part / parts * ROWS; row < panels * (part + 1) / parts * ROWS; row += ROWS) {
            const char *next = table.weights + (row / ROWS + 1) * panel;
            product(&table, row, hidden + block.tiles_before * table.size * LANES, block.tiles, next, sums);
            int64_t rows = width - row < ROWS ? width - row : ROWS;
            for (int64_t t = 0; t < block.tiles; t++) {
                const float *made = transpose(sums[t][0], other, ROWS, ROWS * LANES);
                for (int64_t i = 0; i < LANES && t * LANES + i < block.count; i++) {
                    int64_t pair = block.start + t * LANES + i;
                    float *to = mixed + token[pair] * width + row;
                    for (int64_t r = 0; r < rows; r++) {
                        float value = narrow ? rounded(made[i * ROWS + r]) : made[i * ROWS + r];
                        to[r] += value * scale[pair];
                    }
                }
            }
        }
    }
}
