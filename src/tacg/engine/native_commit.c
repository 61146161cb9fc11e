/* Commits of a step, and the state after it, in one pass over the boards: `resolve_commits` and `advance` for decisions
that only write masks. `native_commit.py` compiles and calls it. */

#include "../scan/top.h"

enum { BASE = 1, EXTRA, FALLBACK }; /* as in `Reason` */

/* How many commits a row must reach: an even share of `masks` over the steps that are left, or what the policy wants. */
static int64_t quota_of(const int64_t *wanted, int64_t masks, int64_t step, int64_t steps, int64_t length) {
    int64_t left = steps - step > 1 ? steps - step : 1;
    if (!wanted) return (masks + left - 1) / left;
    return step + 1 >= steps ? length : *wanted > 1 ? *wanted : 1;
}

/* Returns how many positions were written.

eligible … token  boards [rows, length]; extra, active, wanted (int64 [rows]): NULL if there are none
revisable         whether committed positions keep their trajectories
answer            written in place; its rows are `stride` apart
masked_after, kept, block_after, step_after, failed: the state after the step; failed is the first position with an
                  unusable confidence, or -1
written, share    of each written position: row, position, token, reason; and its confidence */
int64_t tacg_commit(int64_t rows, int64_t length, int64_t blocks, const uint8_t *eligible, const uint8_t *observed,
                    const uint8_t *masked, const uint8_t *base, const uint8_t *extra, const uint8_t *active,
                    const float *rank, const float *confidence, const int64_t *token, const int64_t *grid,
                    const int64_t *block, const int64_t *step, const int64_t *steps, const int64_t *wanted,
                    int revisable, int64_t *answer, int64_t stride, uint8_t *masked_after, uint8_t *kept,
                    int64_t *block_after, int64_t *step_after, int64_t *failed, int64_t *written, float *share) {
    uint8_t due[length > 0 ? length : 1], filled[length > 0 ? length : 1];
    int64_t count = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t start = row * length;
        int64_t masks = 0, done = 0;
        failed[row] = -1;
        for (int64_t i = 0; i < length; i++) {
            int64_t at = start + i;
            int taken = eligible[at] && (base[at] || (extra && extra[at])), mine = (active ? active : eligible)[at];
            masks += mine;
            done += taken && mine;
            due[i] = mine && !taken;
            filled[i] = 0;
            if (failed[row] < 0 && isnan(confidence[at])) failed[row] = i;
        }
        int64_t owed = quota_of(wanted ? wanted + row : 0, masks, step[row], steps[row], length) - done;
        choose_top(rank + start, due, length, owed, filled);
        int64_t next = blocks - 1;
        for (int64_t i = 0; i < length; i++) {
            int64_t at = start + i;
            int reason = filled[i] ? FALLBACK : !eligible[at] ? 0 : base[at] ? BASE : extra && extra[at] ? EXTRA : 0;
            masked_after[at] = masked[at] && !reason;
            kept[at] = observed[at] && (revisable || masked_after[at]);
            if (masked_after[at] && grid[at] < next) next = grid[at];
            if (!reason) continue;
            answer[row * stride + i] = token[at];
            int64_t *line = written + 4 * count;
            line[0] = row, line[1] = i, line[2] = token[at], line[3] = reason;
            share[count++] = confidence[at];
        }
        block_after[row] = next;
        step_after[row] = next == block[row] ? step[row] + 1 : 0;
    }
    return count;
}

/* List the places that are observed, and where their history is (NULL: at its place); returns how many there are. */
int64_t tacg_places(int64_t count, const uint8_t *observed, const int64_t *history, int64_t *places, int64_t *slots) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!observed[i]) continue;
        places[found] = i;
        slots[found++] = history ? history[i] : i;
    }
    return found;
}
