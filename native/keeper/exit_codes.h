#pragma once

namespace keeper {

// Our own failures, by sysexits and by what shells use for commands that can't be started.
enum ExitCode {
  exit_usage = 64,
  exit_internal = 70,
  exit_system = 71,
  exit_output = 74,
  exit_time_limit = 124,  // as timeout(1)
  exit_not_executable = 126,
  exit_not_found = 127,
  exit_signal_base = 128,
};

}  // namespace keeper
