/* Window taps of max pooling: pack_window and unpack_window. See ../window.py and ../reference_windows.py.
 *
 * Pooled elements are gone through in memory order, in runs within which a window's begin moves by a constant step: a
 * row of outputs when channels come first, the channels of one output when they come last. The taps of a run are bytes
 * on the stack and become half bytes in one go.
 */
#include "geometry.h"
#include "window_taps.h"

/* Where a pooled element is; the first of a run. */
struct cursor {
    int64_t depth, height, width, inner;
};

static struct cursor cursor_at(const struct geometry *g, int64_t element) {
    struct cursor at;
    at.inner = element % g->inner, element /= g->inner;
    at.width = element % g->output[WIDTH], element /= g->output[WIDTH];
    at.height = element % g->output[HEIGHT], element /= g->output[HEIGHT];
    at.depth = element % g->output[DEPTH];
    return at;
}

/* Elements from the cursor to where its run ends. A row is also cut where windows begin or cease to be all inside. */
static int64_t run_length(const struct geometry *g, const struct cursor *at) {
    if (g->inner > 1) return g->inner - at->inner;
    if (at->width < g->inside_begin[WIDTH]) return smaller(g->inside_begin[WIDTH], g->output[WIDTH]) - at->width;
    int64_t end = at->width < g->inside_end[WIDTH] ? g->inside_end[WIDTH] : g->output[WIDTH];
    return end - at->width;
}

static void advance(const struct geometry *g, struct cursor *at, int64_t count) {
    if (g->inner > 1) {
        at->inner += count;
        if (at->inner < g->inner) return;
        at->inner = 0, count = 1;
    }
    if ((at->width += count) < g->output[WIDTH]) return;
    at->width = 0;
    if (++at->height < g->output[HEIGHT]) return;
    at->height = 0;
    if (++at->depth == g->output[DEPTH]) at->depth = 0;
}

static int run_is_inside(const struct geometry *g, const struct cursor *at) {
    return is_inside(g, DEPTH, at->depth) && is_inside(g, HEIGHT, at->height) && is_inside(g, WIDTH, at->width);
}

/* The tap by division, for windows that reach into the padding; NOT_A_TAP when the index is not in the window. */
static int tap_by_division(const struct geometry *g, const struct cursor *at, int64_t width, int64_t index) {
    if (index < 0 || index >= g->plane) return NOT_A_TAP;
    int64_t row = index / g->input[WIDTH];
    int64_t position[AXES] = {row / g->input[HEIGHT], row % g->input[HEIGHT], index % g->input[WIDTH]};
    int64_t output[AXES] = {at->depth, at->height, width}, tap = 0;
    for (int axis = 0; axis < AXES; axis++) {
        int64_t distance = position[axis] - window_begin(g, (enum axis)axis, output[axis]);
        int64_t steps = distance / g->dilation[axis];
        if (distance < 0 || distance % g->dilation[axis] != 0 || steps >= g->kernel[axis]) return NOT_A_TAP;
        tap = tap * g->kernel[axis] + steps;
    }
    return (int)tap;
}

/* Taps of one run; the result is below NOT_A_TAP when every index lay in its window. */
static int encode_run(const struct geometry *g, const struct cursor *at, const int64_t *indices, int64_t count,
                      uint8_t *taps) {
    int64_t step = g->inner > 1 ? 0 : 1;
    int seen = 0;
    if (g->table_size == 0 || !run_is_inside(g, at)) {
        for (int64_t i = 0; i < count; i++) {
            int tap = tap_by_division(g, at, at->width + step * i, indices[i]);
            taps[i] = (uint8_t)tap, seen |= tap;
        }
        return seen;
    }
    int64_t begin = begin_index(g, at->depth, at->height, at->width);
    step *= g->stride[WIDTH];
    for (int64_t i = 0; i < count; i++) {
        uint64_t offset = (uint64_t)(indices[i] - begin - step * i), size = (uint64_t)g->table_size;
        uint16_t tap = g->table[offset < size ? offset : size];
        taps[i] = (uint8_t)tap, seen |= tap;
    }
    return seen;
}

struct packing {
    const struct geometry *geometry;
    const int64_t *indices;
    uint8_t *taps;
    int64_t first_bad; /* element, or INT64_MAX */
};

static void remember_bad(struct packing *job, const struct cursor *at, int64_t element, int64_t count) {
    int64_t step = job->geometry->inner > 1 ? 0 : 1, i = 0;
    while (i + 1 < count &&
           tap_by_division(job->geometry, at, at->width + step * i, job->indices[element + i]) != NOT_A_TAP)
        i++;
#pragma omp critical(vdnn_first_bad)
    job->first_bad = smaller(job->first_bad, element + i);
}

static void pack_chunk(void *context, int64_t begin, int64_t end) {
    struct packing *job = context;
    const struct geometry *g = job->geometry;
    struct cursor at = cursor_at(g, begin);
    uint8_t taps[BLOCK];
    for (int64_t first = begin; first < end; first += BLOCK) {
        int64_t n = smaller(BLOCK, end - first);
        for (int64_t i = 0, count; i < n; i += count) {
            count = smaller(run_length(g, &at), n - i);
            if (encode_run(g, &at, job->indices + first + i, count, taps + i) >= NOT_A_TAP)
                remember_bad(job, &at, first + i, count);
            advance(g, &at, count);
        }
        write_taps(g, taps, first, n, job->taps);
    }
}

/* Returns the first element whose index is not in its window, or -1. */
EXPORT int64_t vdnn_pack_window(const int64_t *indices, int64_t n, const int64_t *extents, uint8_t *taps,
                                int threads) {
    struct geometry geometry;
    struct packing job = {&geometry, indices, taps, INT64_MAX};
    prepare(&geometry, extents);
    in_chunks(n, CHUNK, 8 * n, threads, pack_chunk, &job);
    return job.first_bad == INT64_MAX ? -1 : job.first_bad;
}

struct unpacking {
    const struct geometry *geometry;
    const uint8_t *taps;
    int64_t *indices;
    int is_damaged;
};

static void unpack_chunk(void *context, int64_t begin, int64_t end) {
    struct unpacking *job = context;
    const struct geometry *g = job->geometry;
    struct cursor at = cursor_at(g, begin);
    int64_t step = g->inner > 1 ? 0 : g->stride[WIDTH];
    uint8_t taps[BLOCK];
    for (int64_t first = begin; first < end; first += BLOCK) {
        int64_t n = smaller(BLOCK, end - first);
        if (read_taps(g, job->taps, first, n, taps) >= g->num_taps) job->is_damaged = 1;
        for (int64_t i = 0, count; i < n; i += count, advance(g, &at, count)) {
            count = smaller(run_length(g, &at), n - i);
            int64_t start = begin_index(g, at.depth, at.height, at.width);
            int64_t *indices = job->indices + first + i;
            for (int64_t k = 0; k < count; k++) indices[k] = start + step * k + g->offset[taps[i + k]];
        }
    }
}

/* Returns whether all taps are positions of the kernel. */
EXPORT int vdnn_unpack_window(const uint8_t *taps, int64_t n, const int64_t *extents, int64_t *indices, int threads) {
    struct geometry geometry;
    struct unpacking job = {&geometry, taps, indices, 0};
    prepare(&geometry, extents);
    in_chunks(n, CHUNK, 8 * n, threads, unpack_chunk, &job);
    return !job.is_damaged;
}
