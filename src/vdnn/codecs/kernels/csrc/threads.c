/* Work in chunks on the threads of one OpenMP team; without OpenMP, on the calling thread.
 *
 * Chunks are handed out as threads become free: the runtime's copy threads and other processes compete for the same
 * cores, and a fixed share would wait for the thread that was interrupted.
 */
#include "kernels.h"

#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

/* Waking a second thread costs some microseconds, about what a core needs to move this many bytes. */
enum { NBYTES_PER_THREAD = 64 * 1024 };

EXPORT int vdnn_has_threads(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

int team_size(int64_t nbytes, int threads) {
#ifdef _OPENMP
    int64_t wanted = threads > 0 ? threads : omp_get_max_threads();
    return (int)larger(1, smaller(wanted, nbytes / NBYTES_PER_THREAD));
#else
    (void)nbytes, (void)threads;
    return 1;
#endif
}

void in_chunks(int64_t n, int64_t chunk, int64_t nbytes, int threads, chunk_work *work, void *context) {
    int64_t num_chunks = ceil_div(n, chunk);
    int team = (int)smaller(team_size(nbytes, threads), num_chunks);
    if (team <= 1) {
        for (int64_t begin = 0; begin < n; begin += chunk) work(context, begin, smaller(begin + chunk, n));
        return;
    }
    int64_t next = 0;
#pragma omp parallel num_threads(team)
    for (int64_t k; (k = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED)) < num_chunks;)
        work(context, k * chunk, smaller((k + 1) * chunk, n));
}

struct copy {
    const uint8_t *source;
    uint8_t *target;
};

static void copy_chunk(void *context, int64_t begin, int64_t end) {
    struct copy *copy = context;
    memcpy(copy->target + begin, copy->source + begin, (size_t)(end - begin));
}

/* A plain copy by the same team and in one piece per thread, the speed every codec is measured against. */
EXPORT void vdnn_copy(const uint8_t *source, int64_t nbytes, uint8_t *target, int threads) {
    struct copy copy = {source, target};
    int team = team_size(nbytes, threads);
    in_chunks(nbytes, larger(1, ceil_div(nbytes, team)), nbytes, team, copy_chunk, &copy);
}
