// The pages for people: the table that nvidia-smi prints without options, -L and -q.
#pragma once
#include <string>
#include <vector>

#include "smi/driver.h"

namespace smi {

void print_table(const std::vector<Gpu>& gpus);
void print_list(const std::vector<Gpu>& gpus);
// `sections`: "MEMORY,POWER"; empty: all. 0, or the exit code, after saying which section doesn't exist.
int print_log(const std::vector<Gpu>& gpus, const std::string& sections);

}  // namespace smi
