/* Laws of logits, and draws from them: loop/sampling.py says what they are. */

#pragma once

#include <stdint.h>

struct warp { /* as in loop/sampling.py */
    double temperature, top_p, min_p;
    int64_t top_k;
};

/* The id of [count] logits that `u` in [0, 1) falls on; `weights` [count] are overwritten. */
long draw_float32(const void *, long, const struct warp *, double, float *);
long draw_bfloat16(const void *, long, const struct warp *, double, float *);
