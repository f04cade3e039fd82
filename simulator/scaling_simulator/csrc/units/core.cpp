// All that needs no torch, compiled at once.
#include "../clock.cpp"
#include "../links.cpp"
#include "../mailbox.cpp"
#include "../meeting.cpp"
#include "../records.cpp"
#include "../shared_memory.cpp"
#include "../streams.cpp"
#include "../wire.cpp"
