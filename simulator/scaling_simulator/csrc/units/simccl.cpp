// The back end, compiled at once.
#include "../bindings.cpp"
#include "../collectives.cpp"
#include "../communicator.cpp"
#include "../messages.cpp"
