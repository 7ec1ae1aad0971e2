/* The whole device in one translation unit: torch's headers take longer to read than all of this to compile. */

#include "aliases.cpp"
#include "allocator.cpp"
#include "attention.cpp"
#include "autocast.cpp"
#include "controls.cpp"
#include "fallback.cpp"
#include "generator.cpp"
#include "kernels.cpp"
#include "outputs.cpp"
#include "pinned.cpp"
#include "streams.cpp"
