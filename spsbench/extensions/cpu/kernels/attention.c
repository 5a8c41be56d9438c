/* Attention of new tokens over a long past and themselves.

   A row is a new token of a head. Keys and values are read once for all rows of the heads that share them,
   CHUNK keys at a time: scores, their weights in a softmax of the chunk alone, the sums of the values; a
   row's chunks are put together at the end. A TILE of keys or values is laid out first so that a vector
   has the numbers of 16 sums. bfloat16 is multiplied in pairs where the processor does (AVX512_BF16), and
   weights are then rounded to it. What one row adds up, and in which order, does not depend on the rows
   beside it, nor on the keys that it does not see. spsbench/extensions/cpu/replay/attention.py calls it.

   Older keys and values may be codes of 8 or 4 bits, in groups of TILE, laid out as they are multiplied:
   spsbench/engines/session/quantised_cache.py makes them. */

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "numbers.h"
#include "program.h"
#include "turning.h"

#define CHUNK 512 /* keys whose weights have one greatest score; of one thread */
#define BLOCK 48  /* rows at a time */
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

/* Codes of 16 columns, each two of the depth beside each other, as numbers: 128 to 510 of 8 bits, which are
   the lower bytes of bfloat16, and 16 to 31 of 4, whose odd vectors lie in the upper halves of bytes. */
INLINE words numbers_of(int pairs, int bits, const uint8_t *from, long vector, int odd) {
    int upper = bits == 4 ? 4 * (vector & 1) : 0;
    from += 32 * (bits == 4 ? vector / 2 : vector);
#if PAIRED
    if (pairs) {
        __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)from));
        if (bits == 8) return (words)_mm512_add_epi16(codes, _mm512_set1_epi16(0x4300));
        const words low = {0x41884180, 0x41984190, 0x41a841a0, 0x41b841b0, 0x41c841c0, 0x41d841d0,
                           0x41e841e0, 0x41f841f0, 0x41884180, 0x41984190, 0x41a841a0, 0x41b841b0,
                           0x41c841c0, 0x41d841d0, 0x41e841e0, 0x41f841f0}; /* by the last 5 bits */
        return (words)_mm512_permutexvar_epi16(upper ? _mm512_srli_epi16(codes, 4) : codes, (__m512i)low);
    }
#endif
    (void)pairs;
    words codes = __builtin_convertvector(*(const halves *)from, words) >> (8 * odd + upper);
    if (bits == 8) return ((codes & 255u) + 0x4300u) << 16;
    return ((codes & 15u) * 8 + 0x4180u) << 16;
}

struct matrix { /* rows of words, or of codes, whose step is in bytes */
    const void *at;
    long step, column;
};

INLINE void block(int pairs, int bits, int rows, int vectors, struct matrix a, struct matrix b, long depth,
                  float *c, long step, int more) {
    const int parts = vectors * (LANES / REGISTER);
    vector sums[ROWS][VECTORS * LANES / REGISTER];
    const uint32_t *factors = a.at;
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++)
            sums[r][p] = more ? *(const vector *)(c + r * step + p * REGISTER) : (vector){};
    for (long i = 0; i < depth; i++) {
        vector_bits part[VECTORS * LANES / REGISTER];
        for (int v = 0; bits && v < vectors; v++) {
            words made = numbers_of(pairs, bits, (const uint8_t *)b.at + (pairs ? i : i / 2) * b.step,
                                    b.column / LANES + v, i & 1);
            memcpy(part + v * (LANES / REGISTER), &made, sizeof made);
        }
        const uint32_t *from = (const uint32_t *)b.at + i * b.step + b.column;
        for (int p = 0; !bits && p < parts; p++) part[p] = *(const vector_bits *)(from + p * REGISTER);
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < parts; p++)
                sums[r][p] = add_products(pairs, sums[r][p], part[p], factors[r * a.step + i]);
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < parts; p++) *(vector *)(c + r * step + p * REGISTER) = sums[r][p];
}

#define CASE(N)                                                                                    \
    case N:                                                                                        \
        if (wide) block(pairs, bits, N, VECTORS, mine, part, depth, to, step, more);               \
        else block(pairs, bits, N, 1, mine, part, depth, to, step, more);                          \
        break;
/* c [rows, columns] = a [rows, depth] b [depth, columns], added to what is there where there is `more`. */
#define MULTIPLY(NAME, PAIRS, BITS)                                                                \
    static void NAME(long rows, long columns, struct matrix a, struct matrix b, long depth, float *c,\
                     long step, int more) {                                                        \
        const int pairs = PAIRS, bits = BITS;                                                      \
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
#define EACH_WIDTH(NAME, PAIRS) MULTIPLY(NAME, PAIRS, 0) MULTIPLY(NAME##_8, PAIRS, 8) MULTIPLY(NAME##_4, PAIRS, 4)
EACH_WIDTH(multiply_floats, 0)
#if PAIRED
EACH_WIDTH(multiply_pairs, 1)
#else
#define multiply_pairs multiply_floats
#define multiply_pairs_8 multiply_floats_8
#define multiply_pairs_4 multiply_floats_4
#endif

INLINE floats greater(floats one, floats other) {
#ifdef __AVX512F__
    return (floats)_mm512_max_ps((__m512)other, (__m512)one);
#else
    words more = are_less(one, other);
    return (floats)((more & (words)other) | (~more & (words)one));
#endif
}

/* cap * tanh(x / cap): what is between goes through e^(-2|x| / cap), which cannot overflow. */
INLINE floats capped(floats x, float cap) {
    words sign = (words)x & (words)all(-0.0f);
    floats size = (floats)((words)x ^ sign);
    floats power = exponential(size * all(-2 / cap));
    floats made = all(cap) * (all(1.0f) - power) / (all(1.0f) + power);
    return (floats)((words)made | sign);
}

INLINE long chunks_of_codes(const struct attended *text) {
    return text->past ? (text->past->groups * TILE + CHUNK - 1) / CHUNK : 0;
}

INLINE long chunks_of(const struct attended *text) {
    return chunks_of_codes(text) + (text->n + CHUNK - 1) / CHUNK;
}

/* Keys that a row sees of the last `n`: without a mask those up to its own. */
INLINE long seen_by(const struct attended *text, long row) {
    return text->mask ? text->n : text->n - text->tokens + 1 + row % text->tokens;
}

/* The same of the row that sees the most, of `rows` from `first` on: they may be of two heads. */
INLINE long seen_by_any(const struct attended *text, long first, long rows) {
    long end = first % text->tokens + rows;
    return seen_by(text, end < text->tokens ? end - 1 : text->tokens - 1);
}

struct part { /* of a row: a chunk's greatest score, the sum of its weights, then that of its values */
    float top, sum, values[];
};

/* What threads need of each item. */
struct space {
    uint32_t *queries, *tile; /* [BLOCK, words of a row], [TILE, words of a row] */
    float *scores;            /* [BLOCK, CHUNK], which become weights */
};

/* Leaves a vector of factors, and returns it as it was rounded. */
INLINE floats put_factors(int pairs, void *row, long at, floats value) {
#if PAIRED
    if (pairs) {
        __m256i half = (__m256i)_mm512_cvtneps_pbh((__m512)value);
        _mm256_storeu_si256((__m256i *)((bf16 *)row + at), half);
        return (floats)((words)_mm512_cvtepu16_epi32(half) << 16);
    }
#endif
    (void)pairs;
    store_float((float *)row + at, value);
    return value;
}

/* Of numbers of codes: what is lost by rounding their factors grows with the distance from it. */
INLINE floats middle(int bits) { return all(bits == 8 ? 319 : 23.5f); }

/* The first `count` scores become weights, at once rounded where they are pairs, and times the scales of
   values in codes, [groups, 2, TILE] with those of 0. Returns the sum of the latter, weighed. */
INLINE float weigh(int pairs, float *scores, long count, floats tops, const float *scales, int bits,
                   struct part *to) {
    floats sums = {}, least = {};
    float top = tops[0];
    for (int i = 1; i < LANES; i++) top = tops[i] > top ? tops[i] : top;
    for (long i = 0; i < count; i += LANES) {
        floats one = exponential(load_float(scores + i) - all(top));
        if (scales) {
            const float *own = scales + i / TILE * 2 * TILE + i % TILE;
            floats scaled = one * load_float(own);
            least += one * load_float(own + TILE) + middle(bits) * scaled;
            least -= middle(bits) * put_factors(pairs, scores, i, scaled);
        } else one = put_factors(pairs, scores, i, one);
        sums += one;
    }
    to->top = top, to->sum = total(sums);
    return total(least);
}

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
    /* Keys from `first` on, [words of a row, TILE]. Those after the last are the last. */         \
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
    }                                                                                              \
    /* Values from `first` on, [TILE, width], or [TILE / 2, width] of pairs. */                    \
    static void NAME##_values(const NUMBER *value, long first, long n, long width, uint32_t *to) { \
        for (long j = 0; j < TILE && first + j < n; j += 1 + PAIRS, to += width) {                 \
            const NUMBER *one = value + (first + j) * width;                                       \
            const NUMBER *next = first + j + 1 < n ? one + width : one;                            \
            for (long at = 0; at < width; at += (1 + PAIRS) * LANES) {                             \
                words low = NAME##_words(one, at / (1 + PAIRS), width / (1 + PAIRS));              \
                if (PAIRS) interleave(&low, NAME##_words(next, at / 2, width / 2), to + at, width - at);\
                *(words *)(to + at) = low;                                                         \
            }                                                                                      \
        }                                                                                          \
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
            else if (PAIRS) memcpy(room.queries + r * deep, query, width * sizeof *query);              \
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
        for (long r = 0; r < rows; r++) {                                                          \
            float *scores = room.scores + r * CHUNK;                                               \
            const NUMBER *mask = (const NUMBER *)text->mask;                                       \
            long seen = seen_by(text, first + r) - begin;                                          \
            if (mask) mask += (first + r) % text->tokens * text->mask_token + begin;               \
            if (seen > count) seen = count;                                                        \
            floats tops = all(-FLT_MAX);                                                           \
            long i = 0;                                                                            \
            for (; !mask && !cap && i + LANES <= seen; i += LANES) {                               \
                floats one = load_float(scores + i) * all(scale);                                  \
                store_float(scores + i, one);                                                      \
                tops = greater(tops, one);                                                         \
            }                                                                                      \
            for (; i < count; i += LANES) {                                                        \
                floats one = load_float(scores + i) * all(scale), added = {};                      \
                if (cap) one = capped(one, cap);                                                   \
                if (mask && count - i >= LANES) added = load_##NUMBER(mask + i);                   \
                else if (mask)                                                                     \
                    for (long j = 0; j < count - i; j++) added[j] = widen_##NUMBER(mask[i + j]);   \
                for (long j = seen > i ? seen - i : 0; j < LANES; j++) added[j] = -INFINITY;       \
                store_float(scores + i, one += added);                                             \
                tops = greater(tops, one);                                                         \
            }                                                                                      \
            weigh(PAIRS, scores, count, tops, 0, 0, (struct part *)(parts + r * size));            \
        }                                                                                          \
        struct matrix weights = {room.scores, CHUNK, 0}, values = {room.tile, width, 0};           \
        for (long i = 0; i < count; i += TILE) {                                                   \
            long now = count - i < TILE ? count - i : TILE;                                        \
            NAME##_values(value, begin + i, text->n, width, room.tile);                            \
            weights.at = room.scores + i / (1 + PAIRS);                                            \
            MULTIPLIED(rows, width, weights, values, (now + PAIRS) / (1 + PAIRS),                  \
                       ((struct part *)parts)->values, size / sizeof(float), i > 0);               \
        }                                                                                          \
    }                                                                                              \
    /* The same over a chunk of codes, all of which every row sees. */                             \
    static void NAME##_codes(const struct attended *text, long shared, long group, long first,     \
                             long rows, long begin, long width, long query_head, long query_token, \
                             float scale, float cap, struct space room, char *parts, long size) {  \
        const struct coded *past = text->past;                                                     \
        long deep = width / (1 + PAIRS), whole = past->groups * TILE - begin;                      \
        long count = whole < CHUNK ? whole : CHUNK, group_bytes = TILE * width * past->bits / 8;   \
        long at = shared * past->room + begin / TILE; /* the first group */                        \
        const uint8_t *key = (const uint8_t *)past->keys + at * group_bytes;                       \
        const uint8_t *value = (const uint8_t *)past->values + at * group_bytes;                   \
        const float *key_scales = (const float *)past->key_scales + at * 2 * width;                \
        const float *value_scales = (const float *)past->value_scales + at * 2 * TILE;             \
        float base[BLOCK];                                                                         \
        struct matrix queries = {room.queries, deep, 0}, weights = {room.scores, CHUNK, 0};        \
        for (long i = 0; i < count; i += TILE, key += group_bytes, key_scales += 2 * width) {      \
            for (long r = 0; r < rows; r++) {                                                      \
                const NUMBER *query =                                                              \
                    NAME##_query(text, shared * group, first + r, query_head, query_token);        \
                floats sum = {};                                                                   \
                for (long d = 0; d < width; d += LANES) {                                          \
                    floats one = load_##NUMBER(query + d);                                         \
                    floats scaled = one * load_float(key_scales + d), half = middle(past->bits);   \
                    sum += one * load_float(key_scales + width + d) + half * scaled;               \
                    sum -= half * put_factors(PAIRS, room.queries + r * deep, d, scaled);          \
                }                                                                                  \
                base[r] = total(sum);                                                              \
            }                                                                                      \
            for (long d = 0; d < 2 * group_bytes; d += 64) /* soon used */                         \
                __builtin_prefetch(d < group_bytes ? key + group_bytes + d                         \
                                                   : value + i / TILE * group_bytes + d - group_bytes,\
                                   0, 2);                                                          \
            struct matrix keys = {key, 2 * TILE * past->bits / 8, 0};                              \
            if (past->bits == 8) MULTIPLIED##_8(rows, TILE, queries, keys, deep, room.scores + i, CHUNK, 0);\
            else MULTIPLIED##_4(rows, TILE, queries, keys, deep, room.scores + i, CHUNK, 0);       \
            for (long r = 0; r < rows; r++)                                                        \
                for (long j = i; j < i + TILE; j += LANES) {                                       \
                    float *to = room.scores + r * CHUNK + j;                                       \
                    floats one = (load_float(to) + all(base[r])) * all(scale);                     \
                    store_float(to, cap ? capped(one, cap) : one);                                 \
                }                                                                                  \
        }                                                                                          \
        for (long r = 0; r < rows; r++) {                                                          \
            floats tops = all(-FLT_MAX);                                                           \
            for (long i = 0; i < count; i += LANES) tops = greater(tops, load_float(room.scores + r * CHUNK + i));\
            base[r] = weigh(PAIRS, room.scores + r * CHUNK, count, tops, value_scales, past->bits, \
                            (struct part *)(parts + r * size));                                    \
        }                                                                                          \
        for (long i = 0; i < count; i += TILE, value += group_bytes) {                             \
            struct matrix values = {value, 2 * width * past->bits / 8, 0};                         \
            float *to = ((struct part *)parts)->values;                                            \
            weights.at = room.scores + i / (1 + PAIRS);                                            \
            if (past->bits == 8)                                                                   \
                MULTIPLIED##_8(rows, width, weights, values, TILE / (1 + PAIRS), to, size / sizeof *to, i > 0);\
            else MULTIPLIED##_4(rows, width, weights, values, TILE / (1 + PAIRS), to, size / sizeof *to, i > 0);\
        }                                                                                          \
        for (long r = 0; r < rows; r++)                                                            \
            for (long d = 0; d < width; d++) ((struct part *)(parts + r * size))->values[d] += base[r];\
    }                                                                                              \
    /* A row's chunks, each weighed by its greatest score. */                                      \
    static void NAME##_whole(char *parts, long step, long chunks, float sink, long width,    \
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
            floats made = {};                                                                      \
            for (long c = 0; c < chunks; c++) {                                                    \
                const struct part *one = (const struct part *)(parts + c * step);                  \
                made += load_float(one->values + d) * all(one->top);                               \
            }                                                                                      \
            store_##NUMBER(out + d, made * all(1 / sum));                                          \
        }                                                                                          \
    }                                                                                              \
    /* Chunks of all texts at a time: threads part the work of a layer once. */                    \
    int NAME##_each(const struct attended *texts, long count, const NUMBER *sinks, long heads,     \
                    long group, long width, long query_head, long query_token, float scale,        \
                    float cap, int threads) {                                                      \
        long most = 0, tokens = 0, size = sizeof(struct part) + width * sizeof(float);             \
        for (long i = 0; i < count; i++) {                                                         \
            most = chunks_of(texts + i) > most ? chunks_of(texts + i) : most;                      \
            tokens = texts[i].tokens > tokens ? texts[i].tokens : tokens;                          \
        }                                                                                          \
        long chunks = most, blocks = (group * tokens + BLOCK - 1) / BLOCK;                         \
        long shared = heads / group, step = heads * tokens * size; /* from one chunk to the next */\
        char *parts = malloc(count * chunks * step);                                               \
        int failed = 0;                                                                            \
        if (!parts) return 1;                                                                      \
        _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {                       \
            uint32_t *whole = malloc(((BLOCK + TILE) * width + BLOCK * CHUNK) * sizeof *whole);    \
            struct space room = {whole, whole + BLOCK * width, (float *)whole + (BLOCK + TILE) * width};\
            failed |= !whole;                                                                      \
            _Pragma("omp for schedule(dynamic)")                                                   \
            for (long item = 0; item < count * shared * blocks * chunks; item++) {                 \
                const struct attended *text = texts + item / (shared * blocks * chunks);           \
                long chunk = item % chunks, first = item / chunks % blocks * BLOCK;                \
                long head = item / chunks / blocks % shared, rows = group * text->tokens;          \
                long coded = chunks_of_codes(text), now = rows - first < BLOCK ? rows - first : BLOCK;\
                char *part = parts + ((text - texts) * chunks + chunk) * step + (head * rows + first) * size;\
                if (failed || first >= rows || chunk >= chunks_of(text)) continue;                 \
                if (chunk < coded)                                                                 \
                    NAME##_codes(text, head, group, first, now, chunk * CHUNK, width, query_head,  \
                                 query_token, scale, cap, room, part, size);                       \
                else                                                                               \
                    NAME##_chunk(text, head, group, first, now, (chunk - coded) * CHUNK, width,    \
                                 query_head, query_token, scale, cap, room, part, size);           \
            }                                                                                      \
            _Pragma("omp for schedule(static)")                                                    \
            for (long item = 0; item < count * heads * tokens; item++) {                           \
                const struct attended *text = texts + item / (heads * tokens);                     \
                long row = item % (heads * tokens), h = row / text->tokens, t = row % text->tokens;\
                if (failed || h >= heads) continue;                                                \
                NAME##_whole(parts + (text - texts) * chunks * step + row * size, step,            \
                             chunks_of(text),                                                      \
                             sinks ? widen_##NUMBER(sinks[h]) : -INFINITY, width,                  \
                             (NUMBER *)text->out + (t * heads + h) * width);                       \
            }                                                                                      \
            free(whole);                                                                           \
        }                                                                                          \
        free(parts);                                                                               \
        return failed;                                                                             \
    }                                                                                              \
    int NAME(const NUMBER *query, const NUMBER *key, const NUMBER *value, const NUMBER *mask,      \
             const NUMBER *sinks, NUMBER *out, long heads, long group, long tokens, long n,        \
             long width, long query_head, long query_token, long key_head, long value_head,        \
             long mask_token, const struct coded *past, float scale, float cap, int threads) {     \
        struct attended text = {query, key, value, mask, out, past, tokens, n, key_head, value_head,\
                                mask_token};                                                       \
        return NAME##_each(&text, 1, sinks, heads, group, width, query_head, query_token, scale,   \
                           cap, threads);                                                          \
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
