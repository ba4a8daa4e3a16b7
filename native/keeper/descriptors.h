#pragma once

#include <sys/types.h>

namespace keeper {

struct Options;

// Started with 0, 1 or 2 closed: keeps our own descriptors out of those places. The command gets them closed again.
void occupy_standard_descriptors();

// Moves what the command inherits to numbers from 200 on: Node.js, as a command, marks low ones close-on-exec. A
// descriptor for which no number is left stays where it is.
void raise_inherited(Options* options);

// The locks that aren't the command's business, and our sockets, don't reach it.
void mark_close_on_exec(const Options& options);

// Gives back what we would otherwise keep open for others: the reader of a pipe waits until its last writer is gone.
void redirect_to_null(int first, int last);

enum class Keep { leases, leases_and_placeholder, standard, nothing };

// Closes every descriptor but `also` (where not -1) and those that `keep` says. The standard ones stay with all of
// these but with nothing.
void close_others(const Options& options, Keep keep, int also, int also2 = -1);

void close_descriptor(int* fd);

}  // namespace keeper
