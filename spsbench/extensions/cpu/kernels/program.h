/* A step of a pass, as steps.py writes it, and what is the same for all steps of a pass. */

#pragma once

#include <stdint.h>

#include "laws.h"

#define STEP_ARGS 10 /* inputs and outputs of a step */
#define NUMBERS 16 /* sizes and steps */
#define AXES 4
#define NO_MEMORY 1
#define NO_ROW 2
#define KEYS 2 /* base of keys; the next is that of values */

struct step_arg { /* `offset` bytes after a base; base 0: there is none */
    int64_t base, offset;
};

struct text { /* its rows; tokens in its cache after the pass, and how many are read; its mask, or 0 */
    int64_t first, rows, end, seen, mask, mask_step;
};

struct cache_layer { /* addresses of keys and values of a layer and a text, the tokens that fit */
    int64_t keys, values, tokens;
};

struct attended { /* of a text by attention; steps go from one head, or one token, to the next */
    const void *query, *key, *value, *mask; /* mask: NULL where a token sees all up to itself */
    void *out;                              /* [tokens, heads, width] */
    long tokens, n, key_head, value_head, mask_token; /* n: keys */
};

struct pass {
    char **bases;
    struct text *texts; /* `count` for each kind of mask */
    const struct cache_layer *cache_layers; /* `count` for each layer */
    int64_t count;            /* of texts */
    int64_t threads;
};

struct step {
    int (*run)(const struct step *, const struct pass *); /* 0, or NO_MEMORY, or NO_ROW for an id */
    struct step_arg args[STEP_ARGS];
    int64_t n[NUMBERS];
    double real[2];
};

struct draws { /* of a roll-out */
    int64_t *ids;      /* [passes], filled as they are drawn */
    const double *u;   /* [passes] */
    const char *first; /* logits [tokens] of the pass before all */
    const char *made;  /* logits of each pass, `bytes` apart */
    const int64_t *names; /* [tokens] ids of what is drawn; NULL: its number */
    int64_t passes, tokens, bytes, narrow; /* narrow: bfloat16 */
    struct warp warp;
};

int run_step(const struct step *, const int64_t *, int);
int run_steps(const struct step *, long, const struct pass *);
int roll_out(const struct step *, long, struct pass *, long, const int64_t *, long, const struct draws *);

static inline void *arg(const struct step *step, const struct pass *pass, int number) {
    char *base = pass->bases[step->args[number].base];
    return base ? base + step->args[number].offset : 0;
}
