/* A roll-out: passes of one token, each of which is drawn from the logits of the pass before.

   layer_program.py calls it. Whoever asked draws once more from the law that is kept, and takes back tokens
   that differ: sums in another order may end on either side of a uniform. */

#include <stdlib.h>

#include "program.h"

/* The segments of one pass, `advances` apart from those of the next: the bytes of each input of each
   segment. Returns 0, or the error of the operation that failed. */
int roll_out(struct segment *segments, long count, int threads, const int64_t *const *advances,
             const struct draws *draws) {
    float *weights = malloc((draws->tokens + 1) * sizeof *weights);
    if (!weights) return NO_MEMORY;
    const char *logits = draws->first;
    int failed = 0;
    for (long i = 0; i < draws->passes && !failed; i++) {
        long drawn = (draws->narrow ? draw_bfloat16 : draw_float32)(
            logits, draws->tokens, &draws->warp, draws->u[i], weights);
        draws->ids[i] = draws->names ? draws->names[drawn] : drawn;
        failed = run_segments(segments, count, threads);
        logits = draws->made + i * draws->bytes;
        for (long n = 0; n < count; n++) {
            char **inputs = (char **)segments[n].inputs;
            struct text *texts = (struct text *)segments[n].texts;
            for (long j = 0; j < segments[n].inputs_count; j++) inputs[j] += advances[n][j];
            for (long t = 0; t < segments[n].texts_count; t++) texts[t].end++, texts[t].seen++;
        }
    }
    free(weights);
    return failed;
}
