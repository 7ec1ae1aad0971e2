/* Prepares a pooling's windows: offsets by code, codes by offset, and where no window touches the padding. */
#include "geometry.h"

#include <string.h>

static void copy_extents(struct geometry *g, const int64_t extents[20]) {
    int64_t *fields[] = {g->kernel, g->stride, g->padding, g->dilation, g->input, g->output};
    for (int k = 0; k < 6; k++) memcpy(fields[k], extents + 3 * k, sizeof g->kernel);
    g->outer = extents[18], g->inner = extents[19];
    g->num_codes = g->kernel[DEPTH] * g->kernel[HEIGHT] * g->kernel[WIDTH];
    g->plane = g->input[DEPTH] * g->input[HEIGHT] * g->input[WIDTH];
}

static void find_inside(struct geometry *g, enum axis axis) {
    int64_t last_begin = g->input[axis] + g->padding[axis] - (g->kernel[axis] - 1) * g->dilation[axis] - 1;
    g->inside_begin[axis] = ceil_div(g->padding[axis], g->stride[axis]);
    g->inside_end[axis] = last_begin < 0 ? 0 : smaller(g->output[axis], last_begin / g->stride[axis] + 1);
}

static int64_t offset_of(const struct geometry *g, int64_t code) {
    int64_t width = code % g->kernel[WIDTH], rest = code / g->kernel[WIDTH];
    int64_t height = rest % g->kernel[HEIGHT], depth = rest / g->kernel[HEIGHT];
    int64_t row = depth * g->dilation[DEPTH] * g->input[HEIGHT] + height * g->dilation[HEIGHT];
    return row * g->input[WIDTH] + width * g->dilation[WIDTH];
}

/* Two codes share an offset only when the window is wider than the input: then no window is inside, and windows.c
 * divides instead. */
static void fill_table(struct geometry *g) {
    g->table_size = g->offset[g->num_codes - 1] + 1;
    if (g->table_size > LARGEST_TABLE) g->table_size = 0;
    for (int64_t k = 0; k <= g->table_size; k++) g->table[k] = NOT_A_CODE;
    for (int64_t code = 0; code < g->num_codes && g->table_size > 0; code++) {
        if (g->table[g->offset[code]] != NOT_A_CODE) g->table_size = 0;
        g->table[g->offset[code]] = (uint16_t)code;
    }
}

void prepare(struct geometry *g, const int64_t extents[20]) {
    copy_extents(g, extents);
    for (int axis = 0; axis < AXES; axis++) find_inside(g, (enum axis)axis);
    for (int64_t code = 0; code < 256; code++) g->offset[code] = code < g->num_codes ? offset_of(g, code) : 0;
    fill_table(g);
}
