#pragma once

#include <stdint.h>
#include <sys/types.h>

namespace keeper {

struct Options;

// A lease file's text about its holder, for people. Locks decide; the record only informs.
struct Record {
  pid_t pid;
  pid_t keeper;
  int survivors;
  int64_t ended;           // CLOCK_BOOTTIME milliseconds, or -1
  bool gives_way = false;  // others needn't give way, too
  int64_t idle_ends = -1;  // when it is ended as its GPUs do nothing, in ms since 1970; 0: never; -1: they do something
  int64_t until = -1;      // when its time limit ends it, in ms since 1970, or -1
};

// Whether the caller's object, with our members added, fits into the block.
bool record_fits(const Options& options);

// Into each lease file, in one write. Failures are ignored: a full disk must not end a job.
void write_record(const Options& options, const Record& record);

}  // namespace keeper
