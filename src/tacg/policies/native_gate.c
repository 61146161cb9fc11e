/* Persistence and the commit rule of `tacg/gate.py` in one pass over a board; `native_gate.py` compiles and calls it.

Products are not fused with sums here, so that every float is the one that PyTorch computes. */

#include "../scan/top.h"

/* base, extra, support, readiness, streak: the results. reference, readout: NULL without promotions. */
void tacg_gate(int64_t rows, int64_t length, const uint8_t *observed, const uint8_t *first, const uint8_t *eligible,
               const uint8_t *ready, const int64_t *token, const int64_t *token_before, const int64_t *streak_before,
               const float *confidence, const float *reference, const float *readout, int64_t m_base, int64_t m_extra,
               int64_t k_extra, float floor, float escape, float lambda, int steady, int rejoin, uint8_t *base,
               uint8_t *extra, float *support, float *readiness, int64_t *streak) {
    uint8_t among[length > 0 ? length : 1];
    for (int64_t row = 0; row < rows; row++) {
        const int64_t start = row * length;
        for (int64_t i = start; i < start + length; i++) {
            int same = observed[i] && !first[i] && token[i] == token_before[i];
            streak[i] = same ? streak_before[i] + 1 : 1;
            int64_t persisted = confidence[i] >= escape ? INT64_MAX : streak[i];
            base[i] = ready[i] && eligible[i] && persisted >= m_base;
            among[i - start] = eligible[i] && !base[i] && confidence[i] >= floor && persisted >= m_extra &&
                               (rejoin || !ready[i]);
            float gain = reference ? readout[i] - reference[i] : 0.0f;
            gain = gain < 0.0f ? 0.0f : gain;
            support[i] = steady ? -gain : gain;
            readiness[i] = confidence[i] + lambda * support[i];
            extra[i] = 0;
        }
        choose_top(readiness + start, among, length, k_extra, extra + start);
    }
}
