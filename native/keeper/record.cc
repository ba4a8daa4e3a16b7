#include "keeper/record.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "keeper/arguments.h"
#include "keeper/text.h"
#include "locks/ownership.h"

namespace keeper {

namespace {

constexpr size_t kRecordSize = 4096;

// The block is filled with spaces and ends in a newline, so the text may take one byte less (and Text keeps a NUL).
using Block = Buffer<kRecordSize>;

// The object without its closing brace: returns its length, or -1 if it is no object.
int open_object(const char* json, bool* empty) {
  int length = static_cast<int>(strlen(json));
  while (length > 0 && isspace(static_cast<unsigned char>(json[length - 1]))) --length;
  if (*json != '{' || length < 2 || json[length - 1] != '}') return -1;
  --length;
  while (length > 0 && isspace(static_cast<unsigned char>(json[length - 1]))) --length;
  const char last = json[length - 1];
  *empty = last == '{' || last == ',';
  return length;
}

bool compose(const Options& options, const Record& record, Text* text) {
  bool empty = false;
  const int length = open_object(options.record, &empty);
  if (length < 0) return false;
  text->add("%.*s%s\"pid\": %d, \"keeper\": %d, \"survivors\": %d, %s", length, options.record, empty ? "" : ", ",
            record.pid, record.keeper, record.survivors, record.gives_way ? "\"givesWay\": true, " : "");
  if (record.idle_ends >= 0) text->add("\"idleEnds\": %" PRId64 ", ", record.idle_ends);
  if (record.until >= 0) text->add("\"until\": %" PRId64 ", ", record.until);
  text->add("\"ended\": ");
  if (record.ended < 0) {
    text->add("null}");
  } else {
    text->add("%" PRId64 "}", record.ended);
  }
  return !text->truncated();
}

}  // namespace

bool record_fits(const Options& options) {
  if (!options.record) return true;
  Block text;
  return compose(options, {INT_MAX, INT_MAX, INT_MAX, INT64_MAX, true, INT64_MAX, INT64_MAX}, &text);
}

void write_record(const Options& options, const Record& record) {
  if (!options.record) return;
  Block text;
  if (!compose(options, record, &text)) return;
  char block[kRecordSize];
  memset(block, ' ', sizeof block);
  memcpy(block, text.c_str(), text.length());
  block[kRecordSize - 1] = '\n';
  for (int i = 0; i < options.leases.count; ++i) {
    if (!gpu_owner::locks::may_write(options.leases.fds[i])) continue;
    if (pwrite(options.leases.fds[i], block, sizeof block, 0) < 0) continue;
  }
}

}  // namespace keeper
