/* A max pooling's windows, prepared for the loops of windows.c. ../window.py has the meaning of every extent. */
#ifndef VDNN_GEOMETRY_H
#define VDNN_GEOMETRY_H

#include "kernels.h"

enum axis { DEPTH, HEIGHT, WIDTH, AXES };
enum { LARGEST_TABLE = 1 << 15, NOT_A_TAP = 0x100 };

struct geometry {
    int64_t kernel[AXES], stride[AXES], padding[AXES], dilation[AXES], input[AXES], output[AXES];
    int64_t outer, inner;
    int64_t num_taps;   /* of one window: positions in the kernel */
    int64_t plane;      /* elements of one input plane */
    int64_t inside_begin[AXES], inside_end[AXES]; /* outputs whose whole window lies inside the input */
    int64_t offset[256];  /* tap -> index relative to where the window begins */
    int64_t table_size;   /* 0: the offsets are too many, or two taps share one */
    uint16_t table[LARGEST_TABLE + 1]; /* the inverse of offset; NOT_A_TAP between, and at table_size */
};

/* extents: kernel, stride, padding, dilation, input, output, three each, then outer and inner. */
void prepare(struct geometry *geometry, const int64_t extents[20]);

static inline int64_t window_begin(const struct geometry *g, enum axis axis, int64_t output) {
    return output * g->stride[axis] - g->padding[axis];
}

/* Where a window begins, as an index into the plane; padding may make it negative. */
static inline int64_t begin_index(const struct geometry *g, int64_t depth, int64_t height, int64_t width) {
    int64_t row = window_begin(g, DEPTH, depth) * g->input[HEIGHT] + window_begin(g, HEIGHT, height);
    return row * g->input[WIDTH] + window_begin(g, WIDTH, width);
}

static inline int is_inside(const struct geometry *g, enum axis axis, int64_t output) {
    return output >= g->inside_begin[axis] && output < g->inside_end[axis];
}

#endif
