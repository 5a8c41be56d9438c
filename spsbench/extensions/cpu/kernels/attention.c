/* Attention of new tokens over a long past and themselves.

   A row is a new token of a head. Keys and values are read once for all rows of the heads that share them,
   CHUNK keys at a time: scores, their weights in a softmax of the chunk alone, the sums of the values; a
   row's chunks are put together at the end. A TILE of keys or values is laid out first so that a vector
   has the numbers of 16 sums. bfloat16 is multiplied in pairs where the processor does (AVX512_BF16, or AMX
   in heads of a multiple of 32 numbers), and weights are then rounded to it. What one row adds up, and in
   which order, does not depend on the rows beside it, nor on the keys that it does not see.
   spsbench/extensions/cpu/replay/attention.py calls it. */

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "numbers.h"
#include "program.h"
#include "tile_products.h"
#include "turning.h"

#define TILE 64   /* keys that are laid out at a time */
#define CHUNK 512 /* keys whose weights have one greatest score; of one thread */
#define BLOCK 48  /* rows at a time */
#define TALL_BLOCK (4 * BLOCK) /* the same by the matrix unit, of many rows: keys are laid out once for each block */
#ifdef __AVX512F__
#define ROWS 6 /* whose sums fit the registers, beside so many vectors */
#define VECTORS 4
#else
#define ROWS 2
#define VECTORS 2
#endif
#ifdef __AVX512BF16__
#include <immintrin.h>
#define PAIRED 1
#else
#define PAIRED 0
#endif

/* Numbers of a tile in words: floats, or where `pairs` two bfloat16 that are multiplied at once. */
INLINE vector add_products(int pairs, vector sums, vector_bits b, uint32_t a) {
#if PAIRED
    if (pairs) return (vector)_mm512_dpbf16_ps((__m512)sums, (__m512bh)b, (__m512bh)_mm512_set1_epi32(a));
#endif
    (void)pairs;
    float one;
    memcpy(&one, &a, sizeof one);
    return sums + (vector)b * each(one);
}

struct matrix { /* rows of words */
    const void *at;
    long step, column;
};

INLINE void block(int pairs, int rows, int vectors, struct matrix a, struct matrix b, long depth, float *c,
                  long step, int more) {
    const int parts = vectors * (LANES / REGISTER);
    vector sums[ROWS][VECTORS * LANES / REGISTER];
    const uint32_t *factors = a.at;
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++)
            sums[r][p] = more ? *(const vector *)(c + r * step + p * REGISTER) : (vector){};
    for (long i = 0; i < depth; i++) {
        vector_bits part[VECTORS * LANES / REGISTER];
        const uint32_t *from = (const uint32_t *)b.at + i * b.step + b.column;
        for (int p = 0; p < parts; p++) part[p] = *(const vector_bits *)(from + p * REGISTER);
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < parts; p++)
                sums[r][p] = add_products(pairs, sums[r][p], part[p], factors[r * a.step + i]);
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) *(vector *)(c + r * step + p * REGISTER) = sums[r][p];
}

#define CASE(N)                                                                                    \
    case N:                                                                                        \
        if (wide) block(pairs, N, VECTORS, mine, part, depth, to, step, more);               \
        else block(pairs, N, 1, mine, part, depth, to, step, more);                          \
        break;
/* c [rows, columns] = a [rows, depth] b [depth, columns], added to what is there where there is `more`. */
#define MULTIPLY(NAME, PAIRS)                                                                \
    static void NAME(long rows, long columns, struct matrix a, struct matrix b, long depth, float *c,\
                     long step, int more) {                                                        \
        const int pairs = PAIRS;                                                      \
        for (long r = 0; r < rows; r += ROWS) {                                                    \
            struct matrix mine = {(const uint32_t *)a.at + r * a.step, a.step, 0};                 \
            for (long j = 0, wide; j < columns; j += (wide ? VECTORS : 1) * LANES) {               \
                struct matrix part = {b.at, b.step, j};                                            \
                float *to = c + r * step + j;                                                      \
                wide = columns - j >= VECTORS * LANES;                                             \
                switch (rows - r < ROWS ? rows - r : ROWS) { CASES }                               \
            }                                                                                      \
        }                                                                                          \
    }
#if ROWS == 6
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#else
#define CASES CASE(1) CASE(2)
#endif
MULTIPLY(multiply_floats, 0)
#if PAIRED
MULTIPLY(multiply_pairs, 1)
#else
#define multiply_pairs multiply_floats
#endif

INLINE vector greater(vector one, vector other) {
#if defined(__AVX512F__)
    return (vector)_mm512_max_ps((__m512)other, (__m512)one);
#elif defined(__AVX2__)
    return (vector)_mm256_max_ps((__m256)other, (__m256)one);
#else
    vector_bits more = (vector_bits)(one < other);
    return (vector)((more & (vector_bits)other) | (~more & (vector_bits)one));
#endif
}

/* Raises the greatest scores of each lane by LANES more. */
INLINE void raise(vector *tops, const float *scores) {
    for (int p = 0; p < WHOLE; p++) tops[p] = greater(tops[p], load_part_float(scores + p * REGISTER));
}

/* cap * tanh(x / cap): what is between goes through e^(-2|x| / cap), which cannot overflow. */
INLINE floats capped(floats x, float cap) {
    words sign = (words)x & (words)all(-0.0f);
    floats size = (floats)((words)x ^ sign);
    floats power = exponential(size * all(-2 / cap));
    floats made = all(cap) * (all(1.0f) - power) / (all(1.0f) + power);
    return (floats)((words)made | sign);
}

INLINE long chunks_of(const struct attended *text) { return (text->n + CHUNK - 1) / CHUNK; }

/* Keys that a row sees: without a mask those up to its own. */
INLINE long seen_by(const struct attended *text, long row) {
    return text->mask ? text->n : text->n - text->tokens + 1 + row % text->tokens;
}

/* The same of the row that sees the most, of `rows` from `first` on: they may be of two heads. */
INLINE long seen_by_any(const struct attended *text, long first, long rows) {
    long end = first % text->tokens + rows;
    return seen_by(text, end < text->tokens ? end - 1 : text->tokens - 1);
}

/* -infinity from the `seen`-th number on; before it 0. */
INLINE floats unseen(long seen) {
    const ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return (floats)((words)(((ints){} + (int)(seen - 1) - lane) >> 31) & (words)all(-INFINITY));
}

struct part { /* of a row: a chunk's greatest score, the sum of its weights, then that of its values */
    float top, sum, values[];
};

/* What threads need of each item. */
struct space {
    uint32_t *queries, *tile, *values; /* [BLOCK, words of a row], [TILE, words of a row], none; by the matrix unit
                                          [HIGH, words of a row], and twice all keys of a chunk */
    float *scores;                     /* [BLOCK, CHUNK], or [HIGH, CHUNK], which become weights */
};

/* Leaves a vector of factors, and returns it as it was rounded. */
INLINE vector put_factors(int pairs, void *row, long at, vector value) {
#if PAIRED
    if (pairs) {
        __m256i half = (__m256i)_mm512_cvtneps_pbh((__m512)value);
        _mm256_storeu_si256((__m256i *)((bf16 *)row + at), half);
        return (vector)((words)_mm512_cvtepu16_epi32(half) << 16);
    }
#endif
    (void)pairs;
    *(vector *)((float *)row + at) = value;
    return value;
}

/* The first `count` scores become weights, at once rounded where they are pairs. */
INLINE void weigh(int pairs, float *scores, long count, vector *tops, struct part *to) {
    vector sums[WHOLE] = {};
    for (int p = 1; p < WHOLE; p++) tops[0] = greater(tops[0], tops[p]);
    float top = tops[0][0];
    for (int i = 1; i < REGISTER; i++) top = tops[0][i] > top ? tops[0][i] : top;
    for (long i = 0; i < count; i += LANES)
        for (int p = 0; p < WHOLE; p++) {
            long at = i + p * REGISTER;
            vector one = exponential_part(load_part_float(scores + at) - each(top));
            sums[p] += put_factors(pairs, scores, at, one);
        }
    to->top = top, to->sum = total_of(sums);
}

/* Keys from `first` on, [words of a row, TILE]. Those after the last are the last. */
#if SQUARES
#define LAY_KEYS(NAME, NUMBER, PAIRS)                                                              \
    static void NAME##_keys(const NUMBER *key, const NUMBER *value, long first, long n,            \
                            long width, uint32_t *to) {                                            \
        for (long j = 0; j < TILE && first + j / LANES * LANES < n; j += 8) {                      \
            const NUMBER *rows[8];                                                                 \
            for (long i = 0; i < 8; i++)                                                           \
                rows[i] = key + (first + j + i < n ? first + j + i : n - 1) * width;               \
            for (long at = 0; at < width; at += 8) {                                               \
                __m256 square[8];                                                                  \
                for (long i = 0; i < 8; i++) {                                                     \
                    if (at * sizeof(NUMBER) % 64 == 0) { /* soon used */                           \
                        __builtin_prefetch(rows[i] + TILE * width + at, 0, 2);                     \
                        __builtin_prefetch(value + (first + j + i) * width + at, 0, 2);            \
                    }                                                                              \
                    square[i] = (__m256)load_part_##NUMBER(rows[i] + at);                          \
                }                                                                                  \
                turn_square(square);                                                               \
                for (long i = 0; i < 8; i++)                                                       \
                    _mm256_storeu_ps((float *)to + (at + i) * TILE + j, square[i]);                \
            }                                                                                      \
        }                                                                                          \
    }
#else
#define LAY_KEYS(NAME, NUMBER, PAIRS)                                                              \
    static void NAME##_keys(const NUMBER *key, const NUMBER *value, long first, long n,            \
                            long width, uint32_t *to) {                                            \
        long deep = width / (1 + PAIRS);                                                           \
        for (long j = 0; j < TILE && first + j < n; j += LANES) {                                  \
            const NUMBER *rows[LANES];                                                             \
            for (long i = 0; i < LANES; i++)                                                       \
                rows[i] = key + (first + j + i < n ? first + j + i : n - 1) * width;               \
            for (long at = 0; at < deep; at += LANES) {                                            \
                words made[LANES];                                                                 \
                for (long i = 0; i < LANES; i++) {                                                 \
                    long far = at * (1 + PAIRS); /* soon used */                                   \
                    __builtin_prefetch(rows[i] + TILE * width + far, 0, 2);                        \
                    __builtin_prefetch(value + (first + j + i) * width + far, 0, 2);               \
                    made[i] = NAME##_words(rows[i], at, deep);                                     \
                }                                                                                  \
                turn(made);                                                                        \
                for (long i = 0; i < LANES / 2; i++)                                               \
                    *(words *)(to + (at + i) * TILE + j) = made[i];                                \
                for (long i = LANES / 2; i < LANES && at + LANES <= deep; i++)                     \
                    *(words *)(to + (at + i) * TILE + j) = made[i];                                \
            }                                                                                      \
        }                                                                                          \
    }
#endif

#ifndef UNIT
#define unit_chunk attend_bfloat16_chunk
#endif
static void unit_chunk(const struct attended *, long, long, long, long, long, long, long, long, float, float,
                       struct space, char *, long);

#define ATTEND(NAME, NUMBER, PAIRS, MULTIPLIED)                                                    \
    INLINE const NUMBER *NAME##_query(const struct attended *text, long head, long row, long query_head,\
                                      long query_token) {                                          \
        long h = head + row / text->tokens, t = row % text->tokens;                                \
        return (const NUMBER *)text->query + h * query_head + t * query_token;                     \
    }                                                                                              \
    INLINE words NAME##_words(const NUMBER *row, long at, long words_) {                           \
        if (!PAIRS) return (words)load_##NUMBER(row + at);                                         \
        if (words_ - at >= LANES) return *(const words *)(row + 2 * at);                           \
        words made = {}; /* the last 16 numbers of a row */                                        \
        memcpy(&made, row + 2 * at, sizeof made / 2);                                              \
        return made;                                                                               \
    }                                                                                              \
    LAY_KEYS(NAME, NUMBER, PAIRS)                                                                  \
    /* Values from `first` on, [TILE, width], or [TILE / 2, width] of pairs. */                    \
    static void NAME##_values(const NUMBER *value, long first, long n, long width, uint32_t *to) { \
        long count = n - first < TILE ? n - first : TILE;                                          \
        value += first * width;                                                                    \
        for (long i = 0; !PAIRS && i < count * width; i += LANES)                                  \
            store_float((float *)to + i, load_##NUMBER(value + i));                                \
        for (long j = 0; PAIRS && j < count; j += 2, value += 2 * width, to += width) {            \
            const NUMBER *next = j + 1 < count ? value + width : value;                            \
            for (long at = 0; at < width; at += 2 * LANES) {                                       \
                words low = NAME##_words(value, at / 2, width / 2);                                \
                interleave(&low, NAME##_words(next, at / 2, width / 2), to + at, width - at);      \
                *(words *)(to + at) = low;                                                         \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
    /* The first `count` scores of a row in a chunk become weights. */                             \
    static void NAME##_weigh(const struct attended *text, long row, long begin, long count, float scale,\
                             float cap, float *scores, struct part *made) {                        \
        const NUMBER *mask = (const NUMBER *)text->mask;                                           \
        long seen = seen_by(text, row) - begin;                                                    \
        if (mask) mask += row % text->tokens * text->mask_token + begin;                           \
        if (seen > count) seen = count;                                                            \
        vector tops[WHOLE];                                                                        \
        long i = 0;                                                                                \
        for (int p = 0; p < WHOLE; p++) tops[p] = each(-FLT_MAX);                                  \
        for (; !mask && !cap && i + LANES <= seen; i += LANES) {                                   \
            store_float(scores + i, load_float(scores + i) * all(scale));                          \
            raise(tops, scores + i);                                                               \
        }                                                                                          \
        for (; i < count; i += LANES) {                                                            \
            float *to = scores + i;                                                                \
            NUMBER last[LANES] = {};                                                               \
            store_float(to, load_float(to) * all(scale));                                          \
            if (cap) store_float(to, capped(load_float(to), cap));                                 \
            if (mask && count - i < LANES) memcpy(last, mask + i, (count - i) * sizeof *last);     \
            if (mask)                                                                              \
                store_float(to, load_float(to) + load_##NUMBER(count - i < LANES ? last : mask + i));\
            store_float(to, load_float(to) + unseen(seen - i));                                    \
            raise(tops, to);                                                                       \
        }                                                                                          \
        weigh(PAIRS, scores, count, tops, made);                                                   \
    }                                                                                              \
    /* Rows `first` to `first` + `rows` of the heads that share keys, over one chunk. */           \
    static void NAME##_chunk(const struct attended *text, long shared, long group, long first,     \
                             long rows, long begin, long width, long query_head, long query_token, \
                             float scale, float cap, struct space room, char *parts, long size) {  \
        const NUMBER *key = (const NUMBER *)text->key + shared * text->key_head;                   \
        const NUMBER *value = (const NUMBER *)text->value + shared * text->value_head;             \
        long count = seen_by_any(text, first, rows) - begin, deep = width / (1 + PAIRS);           \
        if (count > CHUNK) count = CHUNK;                                                          \
        for (long r = 0; r < rows; r++) {                                                          \
            const NUMBER *query =                                                                  \
                NAME##_query(text, shared * group, first + r, query_head, query_token);            \
            if (count <= 0) memset(((struct part *)(parts + r * size))->values, 0, size - sizeof(struct part));\
            else if (PAIRS) memcpy(room.queries + r * deep, query, width * sizeof *query);         \
            else                                                                                   \
                for (long d = 0; d < width; d += LANES)                                            \
                    store_float((float *)room.queries + r * deep + d, load_##NUMBER(query + d));   \
        }                                                                                          \
        struct matrix queries = {room.queries, deep, 0}, keys = {room.tile, TILE, 0};              \
        for (long i = 0; i < count; i += TILE) {                                                   \
            long now = count - i < TILE ? count - i : TILE;                                        \
            NAME##_keys(key, value, begin + i, text->n, width, room.tile);                         \
            MULTIPLIED(rows, now, queries, keys, deep, room.scores + i, CHUNK, 0);                 \
        }                                                                                          \
        for (long r = 0; r < rows; r++)                                                            \
            NAME##_weigh(text, first + r, begin, count, scale, cap, room.scores + r * CHUNK,       \
                         (struct part *)(parts + r * size));                                       \
        struct matrix weights = {room.scores, CHUNK, 0}, values = {room.tile, width, 0};           \
        for (long i = 0; i < count; i += TILE) {                                                   \
            long now = count - i < TILE ? count - i : TILE;                                        \
            NAME##_values(value, begin + i, text->n, width, room.tile);                            \
            weights.at = room.scores + i / (1 + PAIRS);                                            \
            MULTIPLIED(rows, width, weights, values, (now + PAIRS) / (1 + PAIRS),                  \
                       ((struct part *)parts)->values, size / sizeof(float), i > 0);               \
        }                                                                                          \
    }                                                                                              \
    /* A row's chunks, each weighed by its greatest score. */                                      \
    static void NAME##_whole(char *parts, long step, long chunks, float sink, long width,          \
                             NUMBER *out) {                                                        \
        float top = sink > -FLT_MAX ? sink : -FLT_MAX;                                             \
        for (long c = 0; c < chunks; c++) {                                                        \
            float one = ((const struct part *)(parts + c * step))->top;                            \
            top = one > top ? one : top;                                                           \
        }                                                                                          \
        float sum = exponential(all(sink - top))[0]; /* of no sink, 0 */                           \
        for (long c = 0; c < chunks; c++) {                                                        \
            struct part *one = (struct part *)(parts + c * step);                                  \
            one->top = exponential(all(one->top - top))[0]; /* now its share */                    \
            sum += one->top * one->sum;                                                            \
        }                                                                                          \
        for (long d = 0; d < width; d += LANES) {                                                  \
            vector made[WHOLE] = {};                                                               \
            float row[LANES];                                                                      \
            for (long c = 0; c < chunks; c++) {                                                    \
                const struct part *one = (const struct part *)(parts + c * step);                  \
                for (int p = 0; p < WHOLE; p++)                                                    \
                    made[p] += load_part_float(one->values + d + p * REGISTER) * each(one->top);   \
            }                                                                                      \
            for (int p = 0; p < WHOLE; p++) *(vector *)(row + p * REGISTER) = made[p] * each(1 / sum);\
            store_##NUMBER(out + d, load_float(row));                                              \
        }                                                                                          \
    }                                                                                              \
    /* Puts `rows` rows of all heads from `row` on together, whose first chunks are at `part`. */  \
    static void NAME##_finish(const struct attended *text, const NUMBER *sinks, long row, long rows,\
                              long heads, long width, char *part, long size, long step) {          \
        for (long end = row + rows; row < end; row++, part += size) {                              \
            long head = row / text->tokens, token = row % text->tokens;                            \
            NAME##_whole(part, step, chunks_of(text), sinks ? widen_##NUMBER(sinks[head]) : -INFINITY,\
                         width, (NUMBER *)text->out + (token * heads + head) * width);             \
        }                                                                                          \
    }                                                                                              \
    /* Chunks of all texts at a time: threads part the work of a layer once. */                    \
    int NAME(const struct attended *texts, long count, const NUMBER *sinks, long heads,     \
                    long group, long width, long query_head, long query_token, float scale,        \
                    float cap, int threads) {                                                      \
        long chunks = 0, longest = 0, tokens = 0, size = sizeof(struct part) + width * sizeof(float);\
        for (long i = 0; i < count; i++) {                                                         \
            chunks = chunks_of(texts + i) > chunks ? chunks_of(texts + i) : chunks;                \
            longest = texts[i].n > longest ? texts[i].n : longest;                                 \
            tokens = texts[i].tokens > tokens ? texts[i].tokens : tokens;                          \
        }                                                                                          \
        int unit = PAIRS && width % DEEP == 0 && tiled_bfloat16();                                 \
        long shared = heads / group, many = group * tokens * shared >= 4 * TALL_BLOCK * threads;   \
        long high = unit && many ? TALL_BLOCK : BLOCK, wide = unit ? HIGH : BLOCK;                 \
        long laid = !unit ? TILE : longest < CHUNK ? (longest + TILE - 1) / TILE * TILE : CHUNK;   \
        long blocks = (group * tokens + high - 1) / high, step = heads * tokens * size; /* to the next chunk */\
        char *parts = malloc(count * chunks * step);                                               \
        int failed = 0;                                                                            \
        if (!parts) return 1;                                                                      \
        _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {                       \
            uint32_t *whole = malloc(((wide + laid) * width + wide * CHUNK) * sizeof *whole);      \
            struct space room = {whole, whole + wide * width, whole + wide * width + laid * width / 2,\
                                 (float *)whole + (wide + laid) * width};                          \
            failed |= !whole;                                                                      \
            if (unit) set_tiles(group * tokens < HIGH ? group * tokens : HIGH);                    \
            _Pragma("omp for schedule(dynamic) nowait")                                            \
            for (long item = 0; item < count * shared * blocks * chunks; item++) {                 \
                const struct attended *text = texts + item / (shared * blocks * chunks);           \
                long chunk = item % chunks, first = item / chunks % blocks * high;                 \
                long head = item / chunks / blocks % shared, rows = group * text->tokens;          \
                long now = rows - first < high ? rows - first : high;                              \
                long row = head * rows + first; /* of all heads */                                 \
                char *part = parts + ((text - texts) * chunks + chunk) * step + row * size;        \
                if (failed || first >= rows || chunk >= chunks_of(text)) continue;                 \
                (unit ? unit_chunk : NAME##_chunk)(text, head, group, first, now, chunk * CHUNK, width,\
                                                   query_head, query_token, scale, cap, room, part, size);\
                if (chunks == 1) NAME##_finish(text, sinks, row, now, heads, width, part, size, step);\
            }                                                                                      \
            if (chunks > 1) {                                                                      \
                _Pragma("omp barrier")                                                             \
                _Pragma("omp for schedule(static) nowait")                                         \
                for (long item = 0; item < count * heads * tokens; item++) {                       \
                    const struct attended *text = texts + item / (heads * tokens);                 \
                    long row = item % (heads * tokens);                                            \
                    char *part = parts + (text - texts) * chunks * step + row * size;              \
                    if (failed || row >= heads * text->tokens) continue;                           \
                    NAME##_finish(text, sinks, row, 1, heads, width, part, size, step);            \
                }                                                                                  \
            }                                                                                      \
            if (unit) release_tiles();                                                             \
            free(whole);                                                                           \
        }                                                                                          \
        free(parts);                                                                               \
        return failed;                                                                             \
    }

/* Numbers of two rows become pairs: the first 16 in `low`, the others, if there are any, behind `to`. */
INLINE void interleave(words *low, words next, uint32_t *to, long left) {
#if PAIRED
    __m512i one = (__m512i)*low, other = (__m512i)next;
    const __m512i order = (__m512i)(words){0x200000, 0x210001, 0x220002, 0x230003, 0x240004, 0x250005,
                                           0x260006, 0x270007, 0x280008, 0x290009, 0x2a000a, 0x2b000b,
                                           0x2c000c, 0x2d000d, 0x2e000e, 0x2f000f};
    const __m512i upper = _mm512_add_epi16(order, _mm512_set1_epi16(LANES));
    *low = (words)_mm512_permutex2var_epi16(one, order, other);
    if (left > LANES) *(words *)(to + LANES) = (words)_mm512_permutex2var_epi16(one, upper, other);
#else
    (void)low, (void)next, (void)to, (void)left;
#endif
}

ATTEND(attend_float32, float, 0, multiply_floats)
ATTEND(attend_bfloat16, bf16, PAIRED, multiply_pairs)

#ifdef UNIT
/* Keys and values are laid out once for all rows; for up to FEW rows keys are, a TILE at a time. What is beyond
   the last key is multiplied by 0, or not looked at; rows beyond the last are made of what lies there, and unused. */
static void unit_chunk(const struct attended *text, long shared, long group, long first, long rows, long begin,
                       long width, long query_head, long query_token, float scale, float cap, struct space room,
                       char *parts, long size) {
    const bf16 *key = (const bf16 *)text->key + shared * text->key_head;
    const bf16 *value = (const bf16 *)text->value + shared * text->value_head;
    long count = seen_by_any(text, first, rows) - begin, deep = width / 2, few = rows <= FEW;
    if (count > CHUNK) count = CHUNK;
    for (long i = 0; i < count && !few; i += TILE) {
        attend_bfloat16_keys(key, value, begin + i, text->n, width, room.tile + i * deep);
        attend_bfloat16_values(value, begin + i, text->n, width, room.values + i * deep);
    }
    for (long i = (count + 1) / 2; count > 0 && !few && i % LANES; i++)
        memset(room.values + i * width, 0, width * sizeof *room.values);
    for (long r = 0; r < rows; r += HIGH, parts += HIGH * size) {
        long now = rows - r < HIGH ? rows - r : HIGH, seen = seen_by_any(text, first + r, now) - begin;
        const bf16 *queries = (const bf16 *)room.queries, *weights = (const bf16 *)room.scores;
        if (seen > count) seen = count;
        for (long i = 0; i < now; i++)
            memcpy(room.queries + i * deep,
                   attend_bfloat16_query(text, shared * group, first + r + i, query_head, query_token), 2 * width);
        for (long j = 0; j < seen; j += TILE) {
            uint32_t *keys = room.tile + (few ? 0 : j * deep);
            float *scores = room.scores + j;
            if (few) attend_bfloat16_keys(key, value, begin + j, text->n, width, keys);
            if (few) multiply_few(now, 1, queries, 2 * width, keys, 4 * TILE, width, TILE, scores, 4 * CHUNK);
            else multiply_tiles(queries, 2 * width, keys, 4 * TILE, width, TILE, scores, 4 * CHUNK);
        }
        for (long i = 0; i < now; i++) {
            float *scores = room.scores + i * CHUNK;
            struct part *to = (struct part *)(parts + i * size);
            attend_bfloat16_weigh(text, first + r + i, begin, seen, scale, cap, scores, to);
            long end = (seen + LANES - 1) / LANES * LANES;
            if (seen <= 0) memset(to->values, 0, size - sizeof *to);
            else if (end % DEEP) memset((bf16 *)scores + end, 0, LANES * sizeof(bf16));
        }
        for (long d = 0; d < width && seen > 0; d += TILE) {
            float sums[HIGH][TILE], *to = ((struct part *)parts)->values + d;
            long columns = width - d < TILE ? width - d : TILE, step = now == HIGH ? size : (long)sizeof *sums;
            const bf16 *lines = value + begin * width + d;
            if (few) multiply_few(now, 0, weights, 4 * CHUNK, lines, 2 * width, seen, columns, to, size);
            else
                multiply_tiles(weights, 4 * CHUNK, room.values + d, 4 * width, seen, columns,
                               now == HIGH ? to : *sums, step);
            for (long i = 0; i < now && now < HIGH && !few; i++)
                memcpy((char *)to + i * size, sums[i], columns * sizeof **sums);
        }
    }
}
#endif
