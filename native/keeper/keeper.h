#pragma once

#include <sys/types.h>

namespace keeper {

struct Options;

// Keeps the leases until the command and all its descendants have ended; returns this process's exit code.
// `socket` leads to the front or, where `front` is 0, to the worker.
int keep(const Options &options, int socket, pid_t front);

}  // namespace keeper
