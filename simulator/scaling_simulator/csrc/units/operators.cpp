// The operators, compiled at once.
#include "../fallback.cpp"
#include "../kernels.cpp"
#include "../operators.cpp"
