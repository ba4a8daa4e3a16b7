#include <errno.h>
#include <string.h>

#include "keeper/arguments.h"
#include "keeper/channel.h"
#include "keeper/descendants.h"
#include "keeper/descriptors.h"
#include "keeper/exit_codes.h"
#include "keeper/foreground.h"
#include "keeper/inherited.h"
#include "keeper/keeper.h"
#include "keeper/messages.h"
#include "keeper/record.h"
#include "keeper/signals.h"
#include "keeper/submit.h"
#include "keeper/text.h"
#include "keeper/watchdog.h"
#include "waiter/wait.h"

namespace {

// Without signals nothing is learnt of the command's end.
int give_up(const keeper::Options& options) {
  using namespace keeper;
  const int error = errno;
  Buffer<256> text;
  text.add("signals can't be received (signalfd: %s)%s", strerror(error),
           error == EMFILE || error == ENFILE ? "" : ". Does a seccomp filter forbid it?");
  if (options.mode == Mode::task) {
    Channel channel(options.control);
    Buffer<512> line;
    line.add("{\"event\":\"failed\",\"errno\":%d,\"code\":%d,\"text\":\"%s\"}", error, kExitSystem, text.c_str());
    channel.send(line.c_str());
    channel.send("{\"event\":\"released\"}");
    return 0;
  }
  say("%s", text.c_str());
  end_unstarted(options, kExitSystem);
  int placeholder = options.placeholder;
  close_descriptor(&placeholder);
  end_child(options.placeholder_pid);
  return kExitSystem;
}

int keep_leases(keeper::Options& options) {
  using namespace keeper;
  if (!record_fits(options)) {
    say("keeper: --record must be a JSON object that fits into 4096 bytes together with the keeper's own members");
    return kExitInternal;
  }
  take_signals();
  mark_close_on_exec(options);
  options.signals = open_signals();
  if (options.signals < 0) return give_up(options);
  switch (options.mode) {
    case Mode::hold: return hold(options);
    case Mode::task: raise_inherited(&options); return Watchdog(options).run();
    default: return Foreground(options).run();
  }
}

int wait_in_queue(const keeper::Options& options) {
  const char* path = waiter::wait_for_turn(options.wait, options.ignored_signals, options.command);
  const int error = errno;
  // The program may be gone with its package.
  keeper::say(
      "the wait for GPUs can't go on: %s can't be started: %s. If gpu-owner or Node.js was removed or replaced "
      "meanwhile, start the command again.",
      path, strerror(error));
  return keeper::kExitSystem;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace keeper;
  if (argc > 2 && !strcmp(argv[1], "inherited")) return print_inherited(argv[2], argc > 3 ? argv[3] : nullptr);
  // Node.js inherits descriptors as the caller has them.
  const bool starts_node = argc > 1 && (!strcmp(argv[1], "wait") || !strcmp(argv[1], "submit"));
  if (!starts_node) occupy_standard_descriptors();
  Options options;
  if (const int code = parse_arguments(argc, argv, &options)) return code;
  switch (options.mode) {
    case Mode::wait: return wait_in_queue(options);
    case Mode::submit: return submit(options.command);
    default: return keep_leases(options);
  }
}
