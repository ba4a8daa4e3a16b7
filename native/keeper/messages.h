#pragma once

namespace keeper {

// The prefix of every message: "gpu-owner".
void set_message_prefix(const char* name);

// One line on standard error, in one write.
void say(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace keeper
