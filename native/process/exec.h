// Becoming another program.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gpu_owner::process {

// This process's environment, byte for byte: JavaScript's strings can't carry what isn't UTF-8. `dropped` is how many
// variables GPU_OWNER_DROPPED_0 and up the launcher has left (bin/gpu-owner.cjs): instead of them there is what they
// stand for. In `changes`, `NAME=value` sets a variable, `NAME` removes it.
std::vector<std::string> environment(size_t dropped, const std::vector<std::string>& changes = {});

// Replaces this process, with signal dispositions and mask as a fresh program expects them: Node.js ignores SIGPIPE,
// and what a terminal library changed doesn't concern the next program. Standard input, output and error stay open,
// those in `inherited` and those without close-on-exec (Node.js marks all it finds at its start, 0 to 2 among them).
// The environment is this process's, with what the launcher's shell has dropped. To `arguments` (the first is the
// program's name) the last `own` arguments of this process are appended, byte for byte: JavaScript strings can't carry
// what isn't UTF-8. Returns only on failure: -errno.
int exec(const std::string& path, std::vector<std::string> arguments, size_t own, const std::vector<int>& inherited,
         size_t dropped = 0);

// For a process that can't become another program, because a thread of it is stuck in the kernel: starts the program
// as a child that has all of the above. Returns its PID, or -errno; the caller goes on with proxy_child().
int exec_in_child(const std::string& path, std::vector<std::string> arguments, size_t own,
                  const std::vector<int>& inherited, size_t dropped = 0);

// Closes what the child has inherited, passes signals on to it, and ends as it ends. Each is passed on as SIGRTMAX,
// whose value has the signal in its lowest 8 bits and its sender's PID above: the signal itself would be lost in one
// that the child's whole group got. A stop can't be passed on to who waits for this process, as its stuck thread
// doesn't stop: Ctrl-Z is undone.
[[noreturn]] void proxy_child(int child);

struct Spawned {
  int error = 0;  // errno
  int pid = -1;
  int input = -1, output = -1;  // the ends of its standard input and output, close-on-exec
};
// Starts a helper with this process's standard error and environment; it has no other descriptor of this process. The
// helper ends, if it is one of ours, when its input is closed.
// Another environment, if one is given.
Spawned spawn(const std::string& path, const std::vector<std::string>& arguments,
              const std::vector<std::string>* environment = nullptr);

// A program under way: with an environment of its own, and with descriptors under the numbers that it expects.
struct Started {
  int error = 0;  // errno
  int pid = -1;
  int control = -1;  // the other end of the socket that it has as number `first`; close-on-exec
};
// Starts it with all signals blocked. Standard input is /dev/null, standard output and error are `output`. The
// program gets a socket as number `first`, and `descriptors` as those that follow; `first` must be above all of
// these. Nothing else of this process is passed on.
Started start(const std::string& path, const std::vector<std::string>& arguments,
              const std::vector<std::string>& environment, int output, int first, const std::vector<int>& descriptors);

// A program that goes on when this one has ended, and its session: as a fresh one, with default signal dispositions,
// in a session of its own.
struct Detached {
  int error = 0;  // errno
  int pid = -1;
};
// Standard input is /dev/null, standard output and error are `output`. The program gets `descriptors` from number
// `first` on, which must be above all of these. Nothing else of this process is passed on.
Detached start_detached(const std::string& path, const std::vector<std::string>& arguments,
                        const std::vector<std::string>& environment, int output, int first,
                        const std::vector<int>& descriptors);

// Starts a program with the standard output and error of this process, an empty standard input, and `descriptors` from
// number `first` on, and waits for its end. Returns its exit code, 128 and the number of the signal that ended it, or
// -errno.
int run(const std::string& path, const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
        int first, const std::vector<int>& descriptors);

// Goes on without the process that started this one, in a session of its own: standard input is /dev/null, standard
// output and error are `output`. Closes `foreign`; what else a new program would inherit isn't inherited any longer,
// apart from `kept`. Returns 0 or errno.
int detach(int output, const std::vector<int>& kept, const std::vector<int>& foreign);

// A duplicate numbered 200 or higher that survives exec, or -errno. High, because Node.js marks low inherited
// descriptors close-on-exec, and ranges below are what programs hand out to themselves.
int inheritable_duplicate(int descriptor);

// Returns what a helper says first, up to the end of the line; empty if it says nothing within these milliseconds, or
// ends.
std::string read_line(int descriptor, int milliseconds);

}  // namespace gpu_owner::process
