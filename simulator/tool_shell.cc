// shell: programs that find the simulated driver where they would find the real one.
#include <unistd.h>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "simulator/machine_file.h"
#include "simulator/tool.h"

namespace simulator {
namespace {

// Puts a directory in front of a list of directories, unless it is there.
void prepend(const char* variable, const std::string& directory, const char* unset) {
  const char* before = getenv(variable);
  const std::string list = before != nullptr && before[0] != 0 ? before : unset;
  if ((":" + list + ":").find(":" + directory + ":") != std::string::npos) return;
  setenv(variable, (list.empty() ? directory : directory + ":" + list).c_str(), 1);
}

}  // namespace

int command_shell(const Machine& machine, const Arguments& arguments) {
  if (arguments.count > 0 && strcmp(arguments.values[0], "--") != 0)
    return usage_error("unexpected argument %s", arguments.values[0]);
  // Programs of the shell may change their directory.
  char path[PATH_MAX];
  const char* name = getenv("GPU_OWNER_SIMULATE");
  if (name != nullptr && is_machine_file(name) && realpath(name, path) != nullptr)
    setenv("GPU_OWNER_SIMULATE", path, 1);
  const std::string simulator = libraries_directory();
  if (simulator.empty()) return kExitUsage;
  prepend("LD_LIBRARY_PATH", simulator, "");
  prepend("PATH", simulator + "/bin", "/usr/local/bin:/usr/bin:/bin");
  const char* own = getenv("SHELL");
  char* shell[] = {const_cast<char*>(own != nullptr && own[0] == '/' ? own : "/bin/sh"), nullptr};
  char** command = arguments.count > 1 ? arguments.values + 1 : shell;
  if (command == shell && isatty(STDERR_FILENO))
    fprintf(stderr, "The simulated machine %s. `exit` leaves it.\n", machine.description.name);
  execvp(command[0], command);
  const int error = errno;
  fprintf(stderr, "gpu-owner simulate: %s: %s\n", command[0], strerror(error));
  return error == ENOENT ? 127 : 126;
}

}  // namespace simulator
