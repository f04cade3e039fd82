// The device, compiled at once: torch's headers are most of the work.
#include "../allocator.cpp"
#include "../cost.cpp"
#include "../current.cpp"
#include "../generator.cpp"
#include "../guard.cpp"
#include "../hooks.cpp"
