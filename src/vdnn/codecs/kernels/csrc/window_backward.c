/* The gradient of max pooling from window taps. See ../reference_windows.py.
 *
 * Overlapping windows add to the same input, and floating-point sums depend on their order, so the outputs of a plane
 * are added in ascending order by one thread. Threads share the planes; when channels come last, every channel is a
 * plane and a thread takes a range of them.
 */
#include "geometry.h"
#include "window_taps.h"

enum { CHANNELS = 16 }; /* the smallest range of channels a thread takes: a cache line, so that none is shared */

struct backward {
    const struct geometry *geometry;
    const float *gradient;
    const uint8_t *taps;
    float *target;
    int64_t ranges; /* of channels per outer index */
    int is_damaged;
};

/* One outer index, channels [first, end). `cleared` counts the input positions that have been set to zero. */
struct plane {
    struct backward *job;
    int64_t first, end;
    int64_t element; /* of the pooled tensor: the first of this outer index */
    float *target;
    int64_t cleared;
};

/* Clears up to a position just before windows reach it, so that the cache lines are still there for the sums. */
static void clear_up_to(struct plane *plane, int64_t position) {
    int64_t inner = plane->job->geometry->inner, channels = plane->end - plane->first;
    position = smaller(position, plane->job->geometry->plane);
    if (position <= plane->cleared) return;
    if (channels == inner)
        memset(plane->target + plane->cleared * inner, 0, (size_t)((position - plane->cleared) * inner) * 4);
    else
        for (int64_t k = plane->cleared; k < position; k++)
            memset(plane->target + k * inner + plane->first, 0, (size_t)channels * 4);
    plane->cleared = position;
}

static void clear_for_row(struct plane *plane, int64_t depth, int64_t height) {
    const struct geometry *g = plane->job->geometry;
    int64_t last_depth = window_begin(g, DEPTH, depth) + (g->kernel[DEPTH] - 1) * g->dilation[DEPTH];
    int64_t last_height = window_begin(g, HEIGHT, height) + (g->kernel[HEIGHT] - 1) * g->dilation[HEIGHT];
    last_depth = smaller(last_depth, g->input[DEPTH] - 1), last_height = smaller(last_height, g->input[HEIGHT] - 1);
    clear_up_to(plane, (last_depth * g->input[HEIGHT] + last_height + 1) * g->input[WIDTH]);
}

/* The outputs from `element` on, `count` of them, whose windows begin at `begin` and then every `step` positions. When
 * channels come last, step is 0 and they are the channels from `channel` on. A position outside the plane cannot come
 * from pack_window; it is left out and reported. */
static void add_run(struct plane *plane, int64_t element, int64_t count, int64_t begin, int64_t step, int64_t channel) {
    struct backward *job = plane->job;
    const struct geometry *g = job->geometry;
    const int64_t next_channel = step == 0;
    uint8_t taps[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t n = smaller(BLOCK, count - first);
        const float *gradient = job->gradient + element + first;
        int damaged = read_taps(g, job->taps, element + first, n, taps) >= g->num_taps;
        for (int64_t i = 0; i < n; i++) {
            int64_t position = begin + (first + i) * step + g->offset[taps[i]];
            if (position >= 0 && position < g->plane)
                plane->target[position * g->inner + channel + (first + i) * next_channel] += gradient[i];
            else
                damaged = 1;
        }
        if (damaged) job->is_damaged = 1;
    }
}

/* Output rows are runs when channels come first, the channels of one output when they come last. */
static void add_row(struct plane *plane, int64_t element, int64_t depth, int64_t height) {
    const struct geometry *g = plane->job->geometry;
    if (g->inner == 1) {
        add_run(plane, element, g->output[WIDTH], begin_index(g, depth, height, 0), g->stride[WIDTH], 0);
        return;
    }
    for (int64_t width = 0; width < g->output[WIDTH]; width++, element += g->inner)
        add_run(plane, element + plane->first, plane->end - plane->first, begin_index(g, depth, height, width), 0,
                plane->first);
}

static void add_plane(struct plane *plane) {
    const struct geometry *g = plane->job->geometry;
    int64_t element = plane->element;
    for (int64_t depth = 0; depth < g->output[DEPTH]; depth++)
        for (int64_t height = 0; height < g->output[HEIGHT]; height++) {
            clear_for_row(plane, depth, height);
            add_row(plane, element, depth, height);
            element += g->output[WIDTH] * g->inner;
        }
    clear_up_to(plane, g->plane);
}

static void backward_chunk(void *context, int64_t begin, int64_t end) {
    struct backward *job = context;
    const struct geometry *g = job->geometry;
    int64_t pooled = g->output[DEPTH] * g->output[HEIGHT] * g->output[WIDTH] * g->inner;
    int64_t channels = CHANNELS * ceil_div(ceil_div(g->inner, job->ranges), CHANNELS);
    for (int64_t item = begin; item < end; item++) {
        int64_t outer = item / job->ranges, first = item % job->ranges * channels;
        float *target = job->target + outer * g->plane * g->inner;
        struct plane plane = {job, first, smaller(first + channels, g->inner), outer * pooled, target, 0};
        if (plane.first < plane.end) add_plane(&plane);
    }
}

/* Returns whether every tap led to an input. */
EXPORT int vdnn_window_backward(const float *gradient, const uint8_t *taps, const int64_t *extents, float *target,
                                int threads) {
    struct geometry geometry;
    prepare(&geometry, extents);
    int64_t nbytes = 4 * geometry.outer * geometry.plane * geometry.inner;
    int team = team_size(nbytes, threads);
    int64_t wanted = team == 1 ? 1 : ceil_div(2 * team, larger(1, geometry.outer));
    int64_t ranges = larger(1, smaller(wanted, geometry.inner / CHANNELS));
    struct backward job = {&geometry, gradient, taps, target, ranges, 0};
    int64_t planes_per_chunk = larger(1, BLOCK / larger(1, geometry.plane * geometry.inner));
    in_chunks(geometry.outer * ranges, planes_per_chunk, nbytes, team, backward_chunk, &job);
    return !job.is_damaged;
}
