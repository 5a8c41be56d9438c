/* Reads the test vectors of `sps verify rules --vectors v.txt` and runs two rules over them: modified rejection
 * sampling (sps, chains) and one-sample match (match, chains and trees). Needs nothing but C99.
 *
 *     cc -std=c99 -O1 recipes/vectors/verify.c -o verify && ./verify < v.txt
 *
 * Replace sps() and match() by calls of your own engine. Exits 1 at a wrong verdict or line, or without a vector. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 16, VOCAB = 16, LINE = 4096 };

struct vector {
    char rule[64], drawn[16];
    int nodes, vocab, parents[NODES], draft[NODES], tokens[NODES + 1], accepted;
    double q[NODES + 1][VOCAB], p[NODES][VOCAB], accept[NODES + 1], final[1], plain[NODES + 1];
};

static int line_number;

static void fail(const char *reason) {
    printf("line %d: %s\n", line_number, reason);
    exit(1);
}

/* Inverse CDF: the first token whose cumulative weight is above u times the sum. */
static int draw(const double *weights, int vocab, double u) {
    double sum = 0, below = 0;
    int last = 0;
    for (int x = 0; x < vocab; x++) sum += weights[x];
    for (int x = 0; x < vocab; x++) {
        below += weights[x];
        if (weights[x] > 0) last = x;
        if (u * sum < below) return x;
    }
    return last;
}

/* Keep token i while accept[i] < q / p; then draw from (q - p)+, after the whole draft from q. */
static int sps(const struct vector *v, int *tokens) {
    int kept = 0;
    double left[VOCAB], sum = 0;
    while (kept < v->nodes) {
        int x = v->draft[kept];
        if (!(v->accept[kept] * v->p[kept][x] < v->q[kept][x])) break;
        tokens[kept++] = x;
    }
    for (int x = 0; x < v->vocab; x++) {
        double p = kept < v->nodes ? v->p[kept][x] : 0;
        left[x] = v->q[kept][x] > p ? v->q[kept][x] - p : 0;
        sum += left[x];
    }
    tokens[kept] = draw(sum > 0 ? left : v->q[kept], v->vocab, v->final[0]);
    return kept;
}

/* Draw the target's own token after each kept node, with plain[row], and descend while a child is equal. */
static int match(const struct vector *v, int *tokens) {
    int kept = 0, row = 0;
    for (;;) {
        int own = draw(v->q[row], v->vocab, v->plain[row]), child = -1;
        tokens[kept] = own;
        for (int i = v->nodes - 1; i >= 0; i--)
            if (v->parents[i] == row - 1 && v->draft[i] == own) child = i;
        if (child < 0) return kept;
        kept++, row = child + 1;
    }
}

static int read_doubles(char *text, double *values, int most) {
    int n = 0;
    for (char *end; ; text = end, n++) {
        double value = strtod(text, &end);
        if (end == text) return n;
        if (n == most) fail("more numbers than the vector has tokens");
        values[n] = value;
    }
}

static int read_ints(char *text, int *values, int most) {
    double numbers[NODES + 1];
    int n = read_doubles(text, numbers, most);
    for (int i = 0; i < n; i++) values[i] = (int)numbers[i];
    return n;
}

static int is_wrong(const struct vector *v) {
    int tokens[NODES + 1];
    int kept = strcmp(v->rule, "sps") ? match(v, tokens) : sps(v, tokens);
    return kept != v->accepted || memcmp(tokens, v->tokens, (kept + 1) * sizeof *tokens);
}

int main(void) {
    static char line[LINE];
    static struct vector v;
    int version, total, read = 0, checked = 0, wrong = 0, q = 0, p = 0;
    if (!fgets(line, LINE, stdin) || sscanf(line, "spsbench-vectors %d %d", &version, &total) != 2 || version != 1)
        fail("expected `spsbench-vectors 1 COUNT`");
    for (line_number = 2; fgets(line, LINE, stdin); line_number++) {
        char *values = strchr(line, ' ');
        if (!strchr(line, '\n')) fail("a line that is too long");
        if (!values) continue; /* the empty line after a vector, or a name without numbers */
        if (!strncmp(line, "vector ", 7)) {
            memset(&v, 0, sizeof v), q = p = 0, read++;
            if (sscanf(values, "%63s %15s %d %d", v.rule, v.drawn, &v.nodes, &v.vocab) != 4 || v.nodes > NODES ||
                v.vocab > VOCAB)
                fail("expected `vector RULE DRAWN NODES VOCAB`");
        } else if (!strncmp(line, "parents ", 8)) read_ints(values, v.parents, v.nodes);
        else if (!strncmp(line, "draft ", 6)) read_ints(values, v.draft, v.nodes);
        else if (!strncmp(line, "q ", 2) && q <= v.nodes) read_doubles(values, v.q[q++], v.vocab);
        else if (!strncmp(line, "p ", 2) && p < v.nodes) read_doubles(values, v.p[p++], v.vocab);
        else if (!strncmp(line, "u accept", 8)) read_doubles(line + 8, v.accept, v.nodes);
        else if (!strncmp(line, "u final", 7)) read_doubles(line + 7, v.final, 1);
        else if (!strncmp(line, "u plain", 7)) read_doubles(line + 7, v.plain, v.nodes + 1);
        else if (!strncmp(line, "accepted ", 9)) v.accepted = atoi(values);
        else if (!strncmp(line, "tokens ", 7)) {
            if (read_ints(values, v.tokens, v.nodes + 1) != v.accepted + 1) fail("tokens and accepted differ");
            if (strcmp(v.rule, "sps") && strcmp(v.rule, "match")) continue;
            checked++;
            if (is_wrong(&v)) wrong++, printf("line %d: wrong verdict of %s\n", line_number, v.rule);
        } else fail("a line of another format");
    }
    printf("%d of %d vectors checked, %d wrong\n", checked, read, wrong);
    return wrong || !checked || read != total;
}
