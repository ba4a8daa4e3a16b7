#include "keeper/arguments.h"
#include "keeper/descriptors.h"
#include "keeper/exit_codes.h"
#include "keeper/front.h"
#include "keeper/guard.h"
#include "keeper/hold.h"
#include "keeper/messages.h"
#include "keeper/record.h"
#include "keeper/signals.h"

int main(int argc, char **argv) {
  using namespace keeper;
  occupy_standard_descriptors();
  Options options;
  if (const int code = parse_arguments(argc, argv, &options)) return code;
  if (options.mode == Mode::help) {
    print_help();
    return 0;
  }
  if (!record_fits(options)) {
    say("keeper: --record must be a JSON object that fits into 4096 bytes together with the keeper's own members");
    return exit_internal;
  }
  take_signals();
  mark_close_on_exec(options);
  switch (options.mode) {
    case Mode::hold:
      return hold(options);
    case Mode::task:
      raise_inherited(&options);
      return Guard(options).run();
    default:
      return Front(options).run();
  }
}
