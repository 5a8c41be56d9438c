/* A roll-out: passes of one token, each of which is drawn from the logits of the pass before.

   program.py calls it. Whoever asked draws once more from the distribution that is kept, and takes back
   tokens that differ: sums in another order may end on either side of a uniform. */

#include <stdlib.h>

#include "program.h"

/* Passes whose bases are `advances` apart. Returns 0, or the error of the step that failed. */
int roll_out(const struct step *steps, long count, struct pass *pass, long bases, const int64_t *advances,
             long texts, const struct draws *draws) {
    float *weights = malloc((draws->tokens + 1) * sizeof *weights);
    if (!weights) return NO_MEMORY;
    const char *logits = draws->first;
    int failed = 0;
    for (long i = 0; i < draws->passes && !failed; i++) {
        long drawn = (draws->narrow ? draw_bfloat16 : draw_float32)(
            logits, draws->tokens, &draws->warp, draws->u[i], weights);
        draws->ids[i] = draws->names ? draws->names[drawn] : drawn;
        failed = run_steps(steps, count, pass);
        logits = draws->made + i * draws->bytes;
        for (long n = 0; n < bases; n++) pass->bases[n] += advances[n];
        for (long t = 0; t < texts; t++) pass->texts[t].end++, pass->texts[t].seen++;
    }
    free(weights);
    return failed;
}
