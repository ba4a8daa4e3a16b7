// The file of a job in the background, on a disk that is full. This test is who starts the job.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/directory.h"
#include "support/mount.h"
#include "support/processes.h"
#include "test.h"

namespace {

constexpr off_t kOffset = 4096;
constexpr size_t kSize = 512;

pid_t run(int job, const char* command) {
  const std::string number = std::to_string(job);
  return tests::start([&] {
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    execl((std::string(BUILD_DIRECTORY) + "/gpu-owner-keeper").c_str(), "gpu-owner-keeper", "run", "--job",
          number.c_str(), "--", "sh", "-c", command, nullptr);
    return 1;
  });
}

}  // namespace

TEST("a full disk loses no end of a job whose file has room for it") {
  const std::string directory = tests::path_of("small");
  tests::mount_small(directory, 64);
  const int job = open((directory + "/job").c_str(), O_RDWR | O_CREAT, 0600);
  REQUIRE(job >= 0);
  const std::string room(kOffset + kSize, ' ');
  REQUIRE_EQUAL(write(job, room.data(), room.size()), static_cast<ssize_t>(room.size()));
  const int filler = open((directory + "/filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  while (write(filler, room.data(), room.size()) > 0) continue;
  CHECK_EQUAL(tests::end_of(run(job, "exit 7")), 7);
  const std::string state = tests::contents_of(directory + "/job").substr(kOffset, kSize);
  CHECK(state.find("\"exitCode\": 7,") != std::string::npos);
  CHECK(state.find("\"ended\": null") == std::string::npos);
}
