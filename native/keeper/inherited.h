#pragma once

namespace keeper {

// Tells the launcher, a shell script, what Node.js or the shell itself would destroy: ignored signals, the limit of
// open files and inherited descriptors, which a shell's child has as well. This takes the shell hundreds of calls and
// another program otherwise, see bin/gpu-owner.cjs. `shell` (a PID, or null): also the variables that this shell was
// started with but can't name, as hexadecimal digits, with the NUL after each, in lines of 65536. Returns an exit
// code.
int print_inherited(const char* script, const char* shell);

}  // namespace keeper
