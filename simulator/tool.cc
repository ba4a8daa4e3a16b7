// The command line: which machine, which command. The help is that of `gpu-owner simulate`: scenarios/words.ts.
#include "simulator/tool.h"

#include <unistd.h>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <new>

namespace simulator {
namespace {

int run(int count, char** values) {
  char* end = values[count - 1] + strlen(values[count - 1]);
  int at = 1;
  for (; at < count && values[at][0] == '-'; ++at) {
    const std::string option = values[at];
    if (option == "--machine" && at + 1 < count)
      setenv("GPU_OWNER_SIMULATE", values[++at], 1);
    else if (option.rfind("--machine=", 0) == 0)
      setenv("GPU_OWNER_SIMULATE", option.c_str() + strlen("--machine="), 1);
    else
      return usage_error(option == "--machine" ? "%s needs a value" : "unknown option %s", option.c_str());
  }
  if (at == count) return usage_error("a command is missing");
  const std::string command = values[at];
  // The options may also follow the command.
  int kept = at + 1;
  bool own = true;  // after `--` come the arguments of another program
  for (int i = at + 1; i < count; ++i) {
    const std::string option = values[i];
    own = own && option != "--";
    if (own && option == "--machine") {
      if (i + 1 == count) return usage_error("--machine needs a value");
      setenv("GPU_OWNER_SIMULATE", values[++i], 1);
    } else if (own && option.rfind("--machine=", 0) == 0) {
      setenv("GPU_OWNER_SIMULATE", option.c_str() + strlen("--machine="), 1);
    } else {
      values[kept++] = values[i];
    }
  }
  values[kept] = nullptr;
  const Arguments arguments = {kept - at - 1, values + at + 1};
  if (command == "machines") return command_machines(arguments);
  if (command != "show" && command != "set" && command != "reset" && command != "occupy" && command != "shell")
    return usage_error("unknown command %s", command.c_str());

  auto* machine = new (std::nothrow) Machine;
  Error error = {};
  if (!machine || !attach(machine, &error)) {
    fprintf(stderr, "gpu-owner simulate: %s\n", error.message);
    // A wrong machine is a wrong command line; a state that can't be used isn't.
    static MachineDescription description;
    return describe(&description, &error) ? 74 : kExitUsage;
  }
  if (command == "show") return command_show(*machine, arguments);
  if (command == "set") return command_set(*machine, arguments);
  if (command == "reset") return command_reset(*machine, arguments);
  if (command == "shell") return command_shell(*machine, arguments);
  return command_occupy(*machine, arguments, values[0], end);
}

}  // namespace

std::string libraries_directory() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length > 0 && length < ssize_t{sizeof path}) {
    const std::string program(path, static_cast<size_t>(length));
    return program.substr(0, program.rfind('/')) + "/simulator";
  }
  fprintf(stderr, "gpu-owner simulate: cannot read /proc/self/exe: %s\n", strerror(errno));
  return "";
}

int usage_error(const char* format, ...) {
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
