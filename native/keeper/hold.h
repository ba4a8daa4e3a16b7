#pragma once

namespace keeper {

struct Options;

// Holds the leases until standard input ends or a signal comes; returns the exit code.
int hold(const Options& options);

}  // namespace keeper
