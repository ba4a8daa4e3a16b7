// The command line: which machine, which command.
#include "simulator/tool.h"

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>

namespace simulator {
namespace {

constexpr const char* kHelp =
    R"(Usage: gpu-owner simulate [--machine MACHINE] COMMAND

Looks at and changes a simulated machine: GPUs that exist only for the programs that use the simulated
driver. MACHINE is a number of plain GPUs (1 to 64) or a named machine; without --machine it is the value
of GPU_OWNER_SIMULATE. Its state lies in GPU_OWNER_SIMULATE_DIR, by default
${TMPDIR:-/tmp}/gpu-owner-simulated-UID.

Commands:
  machines [--json]            the named machines
  show [--json]                every GPU: memory, processes, what is switched on
  set [gpu=0,2|all] KEY=VALUE  change something, also while programs use the machine
  occupy GPU [--memory SIZE] [--type TYPE] [--name NAME]
                               be a foreign process on a GPU, until killed or until standard input closes;
                               prints `ready PID` when it is visible. GPU: an index or a UUID; of a MIG
                               instance its UUID, or as in 0:2. TYPE: compute, graphics (also --graphics),
                               compute+graphics, or mps-server (Multi-Process Service: what computes on the
                               GPU while it lives are its clients)
  reset                        everything that `set` changed back to the machine's defaults

Keys of `set` for GPUs (after gpu=):
  lost=on|off  reset-required=on|off  no-permission=on|off
  compute-mode=default|exclusive-thread|exclusive-process|prohibited
  hidden-processes=on|off      nobody sees the processes, as in a container; their memory counts
  hidden-memory=SIZE           memory in use by no process that can be seen
  utilization=PERCENT  power=WATTS  temperature=DEGREES     or `default`
  mig=on|off  display=on|off
  instances=0,2|none|default   of its MIG instances, those that exist

Keys for GPUs, or for the whole machine where gpu= is left out:
  hang=CALL,…|off              these calls block until the fault is lifted
  latency=CALL:MICROSECONDS,…|off
  unsupported=CALL,…|off       these calls return NOT_SUPPORTED (3)
  error=CALL:CODE,…|off        these calls return CODE; CODE 0 takes it back
Keys for the whole machine:
  teardown=MILLISECONDS        how long the driver goes on listing a process that has died
  pid-offset=NUMBER            the driver lists processes by numbers that are so much higher, as older ones do
                               in a container, where they give those of the host
  count=on|off                 how often each call is made, from 0, is in `show --json`

Calls:)";

void printWrapped(const std::string& words) {
  size_t column = strlen("Calls:");
  for (size_t at = 0; at < words.size();) {
    size_t end = words.find(' ', at);
    if (end == std::string::npos) end = words.size();
    if (column + 1 + (end - at) > 100) {
      printf("\n      ");
      column = 6;
    }
    printf(" %s", words.substr(at, end - at).c_str());
    column += end - at + 1;
    at = end + 1;
  }
  printf("\n");
}

int run(int count, char** values) {
  char* end = values[count - 1] + strlen(values[count - 1]);
  int at = 1;
  for (; at < count && values[at][0] == '-'; ++at) {
    const std::string option = values[at];
    if (option == "--help" || option == "-h") {
      fputs(kHelp, stdout);
      printWrapped(callNames() + ", all");
      return 0;
    }
    if (option == "--machine" && at + 1 < count)
      setenv("GPU_OWNER_SIMULATE", values[++at], 1);
    else if (option.rfind("--machine=", 0) == 0)
      setenv("GPU_OWNER_SIMULATE", option.c_str() + strlen("--machine="), 1);
    else
      return usageError(option == "--machine" ? "%s needs a value" : "unknown option %s", option.c_str());
  }
  if (at == count) return usageError("a command is missing");
  const std::string command = values[at];
  // The options may also follow the command.
  int kept = at + 1;
  for (int i = at + 1; i < count; ++i) {
    const std::string option = values[i];
    if (option == "--help" || option == "-h") {
      char* help[] = {values[0], values[i], nullptr};
      return run(2, help);
    }
    if (option == "--machine") {
      if (i + 1 == count) return usageError("--machine needs a value");
      setenv("GPU_OWNER_SIMULATE", values[++i], 1);
    } else if (option.rfind("--machine=", 0) == 0) {
      setenv("GPU_OWNER_SIMULATE", option.c_str() + strlen("--machine="), 1);
    } else {
      values[kept++] = values[i];
    }
  }
  values[kept] = nullptr;
  const Arguments arguments = {kept - at - 1, values + at + 1};
  if (command == "machines") return commandMachines(arguments);
  if (command != "show" && command != "set" && command != "reset" && command != "occupy")
    return usageError("unknown command %s", command.c_str());

  auto* machine = new (std::nothrow) Machine;
  Error error = {};
  if (!machine || !attach(machine, &error)) {
    fprintf(stderr, "gpu-owner simulate: %s\n", error.message);
    // A wrong machine is a wrong command line; a state that can't be used isn't.
    const char* name = getenv("GPU_OWNER_SIMULATE");
    static MachineDescription description;
    return name && describeMachine(name, &description) ? 74 : kExitUsage;
  }
  if (command == "show") return commandShow(*machine, arguments);
  if (command == "set") return commandSet(*machine, arguments);
  if (command == "reset") return commandReset(*machine, arguments);
  return commandOccupy(*machine, arguments, values[0], end);
}

}  // namespace

int usageError(const char* format, ...) {
  fputs("gpu-owner simulate: ", stderr);
  va_list arguments;
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputs(" (gpu-owner simulate --help shows how it is used)\n", stderr);
  return kExitUsage;
}

}  // namespace simulator

int main(int count, char** values) { return count > 0 ? simulator::run(count, values) : simulator::kExitUsage; }
