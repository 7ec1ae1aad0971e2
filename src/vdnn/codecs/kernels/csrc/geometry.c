/* Prepares a pooling's windows: offsets by tap, taps by offset, and where no window touches the padding. */
#include "geometry.h"

#include <string.h>

static void copy_extents(struct geometry *g, const int64_t extents[20]) {
    int64_t *fields[] = {g->kernel, g->stride, g->padding, g->dilation, g->input, g->output};
    for (int k = 0; k < 6; k++) memcpy(fields[k], extents + 3 * k, sizeof g->kernel);
    g->outer = extents[18], g->inner = extents[19];
    g->num_taps = g->kernel[DEPTH] * g->kernel[HEIGHT] * g->kernel[WIDTH];
    g->plane = g->input[DEPTH] * g->input[HEIGHT] * g->input[WIDTH];
}

static void find_inside(struct geometry *g, enum axis axis) {
    int64_t last_begin = g->input[axis] + g->padding[axis] - (g->kernel[axis] - 1) * g->dilation[axis] - 1;
    g->inside_begin[axis] = ceil_div(g->padding[axis], g->stride[axis]);
    g->inside_end[axis] = last_begin < 0 ? 0 : smaller(g->output[axis], last_begin / g->stride[axis] + 1);
}

static int64_t offset_of(const struct geometry *g, int64_t tap) {
    int64_t width = tap % g->kernel[WIDTH], rest = tap / g->kernel[WIDTH];
    int64_t height = rest % g->kernel[HEIGHT], depth = rest / g->kernel[HEIGHT];
    int64_t row = depth * g->dilation[DEPTH] * g->input[HEIGHT] + height * g->dilation[HEIGHT];
    return row * g->input[WIDTH] + width * g->dilation[WIDTH];
}

/* Two taps share an offset only when the window is wider than the input: then no window is inside, and windows.c
 * divides instead. */
static void fill_table(struct geometry *g) {
    g->table_size = g->offset[g->num_taps - 1] + 1;
    if (g->table_size > LARGEST_TABLE) g->table_size = 0;
    for (int64_t k = 0; k <= g->table_size; k++) g->table[k] = NOT_A_TAP;
    for (int64_t tap = 0; tap < g->num_taps && g->table_size > 0; tap++) {
        if (g->table[g->offset[tap]] != NOT_A_TAP) g->table_size = 0;
        g->table[g->offset[tap]] = (uint16_t)tap;
    }
}

void prepare(struct geometry *g, const int64_t extents[20]) {
    copy_extents(g, extents);
    for (int axis = 0; axis < AXES; axis++) find_inside(g, (enum axis)axis);
    for (int64_t tap = 0; tap < 256; tap++) g->offset[tap] = tap < g->num_taps ? offset_of(g, tap) : 0;
    fill_table(g);
}
