#pragma once

namespace keeper {

// Our own failures, by sysexits and by what shells use for commands that can't be started.
enum ExitCode {
  kExitUsage = 64,
  kExitInternal = 70,
  kExitSystem = 71,
  kExitOutput = 74,
  kExitTimeLimit = 124,  // as timeout(1)
  kExitNotExecutable = 126,
  kExitNotFound = 127,
  kExitSignalBase = 128,
};

}  // namespace keeper
