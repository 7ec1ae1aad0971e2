/* Which inner loops run: the best this CPU has, or a lower level that a test asked for.
 *
 * The tables are filled when the library is loaded, before any thread can call it. vdnn_use_level is for tests and
 * benchmarks, which call it while nothing else runs.
 */
#include "kernels.h"

#ifdef VDNN_X86
#include <cpuid.h>
#endif

static struct inner tables[AVX512 + 1];
static enum level best, current;

#ifdef VDNN_X86
static int has_f16c(void) {
    unsigned eax, ebx, ecx, edx; /* clang's __builtin_cpu_supports does not know the name before version 19 */
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static enum level detect(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("popcnt") || !has_f16c()) return GENERIC;
    int has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                     __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has_avx512 ? AVX512 : AVX2;
}

/* A level begins as a copy of the one below and replaces what it can do faster. */
static void fill_x86_tables(void) {
    tables[AVX2] = tables[GENERIC];
    enter_masks_avx2(&tables[AVX2]);
    enter_floats_avx2(&tables[AVX2]);
    enter_compaction_avx2(&tables[AVX2]);
    tables[AVX512] = tables[AVX2];
    enter_compaction_avx512(&tables[AVX512]);
}
#endif

__attribute__((constructor)) static void choose_level(void) {
    enter_masks_generic(&tables[GENERIC]);
    enter_floats_generic(&tables[GENERIC]);
    enter_compaction_generic(&tables[GENERIC]);
#ifdef VDNN_X86
    fill_x86_tables();
    best = detect();
#endif
    current = best;
}

const struct inner *inner(void) { return &tables[current]; }
const struct inner *generic_inner(void) { return &tables[GENERIC]; }

EXPORT int vdnn_abi(void) { return VDNN_ABI; }
EXPORT int vdnn_level(void) { return (int)current; }
EXPORT int vdnn_best_level(void) { return (int)best; }
EXPORT void vdnn_use_level(int level) { current = (enum level)smaller(level, best); }
