/* An operation of a layer, as spsbench/engines/lowering.py writes it down, and what a pass tells to all. */

#pragma once

#include <stdint.h>

#include "laws.h"

#define PLACES 10  /* inputs and outputs of an operation */
#define NUMBERS 16 /* sizes and steps */
#define AXES 4
#define NO_MEMORY 1
#define NO_ROW 2
#define MADE 2 /* base of the result */
#define KEYS 3 /* base of keys; the next is that of values, the one after it of the first input */
#define FIRST 5

struct place { /* `offset` bytes after a base; base 0: there is none */
    int64_t base, offset;
};

struct text { /* its rows; tokens in its cache after the pass, and how many are read; its mask, or 0 */
    int64_t first, rows, end, seen, mask, mask_step;
};

struct room { /* addresses of keys and values of a layer and a text, the tokens that fit */
    int64_t keys, values, tokens;
};

struct attended { /* of a text by attention; steps go from one head, or one token, to the next */
    const void *query, *key, *value, *mask; /* mask: NULL where a token sees all up to itself */
    void *out;                              /* [tokens, heads, width] */
    long tokens, n, key_head, value_head, mask_token; /* n: keys */
};

struct pass { /* through a layer */
    char *const *bases;
    const struct text *texts;
    const struct room *rooms; /* one a text */
    int64_t count;            /* of texts */
    int threads;
};

struct step {
    int (*run)(const struct step *, const struct pass *); /* 0, or NO_MEMORY, or NO_ROW for an id */
    struct place at[PLACES];
    int64_t n[NUMBERS];
    double real[2];
};

struct segment { /* of a pass: operations over layers that follow each other, each over what the last made */
    const struct step *steps;
    int64_t count;
    char *const *inputs; /* the first bases; that of `FIRST` is the hidden states */
    int64_t inputs_count;
    char *const *weights; /* the bases after them, `each` a layer */
    int64_t each;
    const struct room *rooms; /* one a layer and text */
    int64_t layers, step;     /* bytes from what a layer made to what the next makes */
    const struct text *texts;
    int64_t texts_count;
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

int run_segments(const struct segment *, long, int);
int roll_out(struct segment *, long, int, const int64_t *const *, const struct draws *);

static inline void *at(const struct step *step, const struct pass *pass, int place) {
    char *base = pass->bases[step->at[place].base];
    return base ? base + step->at[place].offset : 0;
}
