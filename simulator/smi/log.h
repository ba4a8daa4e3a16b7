// The log: all that is known of GPUs, as text (-q) or as XML (-q -x).
#pragma once
#include <string>
#include <vector>

#include "simulator/smi/driver.h"

namespace smi {

// Whether `sections` (MEMORY,POWER) are sections of the log. Else says so.
bool are_sections(const std::string& sections);

// Prints the log, or only some of its sections.
void print_log(const std::vector<Gpu>& gpus, const std::string& sections);
void print_xml_log(const std::vector<Gpu>& gpus);

}  // namespace smi
