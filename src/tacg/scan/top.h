/* The best positions of a row, in the order of `tacg.types.top`: by score, ties and NaN as its stable sort has them. */

#include <float.h>
#include <math.h>
#include <stdint.h>

static inline float bounded(float score) { return score < -FLT_MAX ? -FLT_MAX : score; }

/* Set chosen[i] for the `count` best of the positions that are in `among`; the first of equals is better. */
static void choose_top(const float *score, const uint8_t *among, int64_t length, int64_t count, uint8_t *chosen) {
    int64_t rivals = 0;
    for (int64_t i = 0; i < length; i++) rivals += among[i];
    if (rivals <= count) { /* nobody has to be turned away */
        for (int64_t i = 0; i < length; i++) chosen[i] |= among[i];
        return;
    }
    for (; count > 0; count--) {
        int64_t best = -1;
        for (int64_t i = 0; i < length; i++) {
            if (!among[i] || chosen[i]) continue;
            float mine = bounded(score[i]), its = best < 0 ? 0.0f : bounded(score[best]);
            if (best < 0 || (isnan(mine) ? !isnan(its) : mine > its)) best = i;
        }
        chosen[best] = 1;
    }
}
