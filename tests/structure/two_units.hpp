// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <ddpp/ddpp.hpp>

#include <vector>

namespace part {

void plain(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& x);
void plain(ddpp::communicator<ddpp::shm>& comm, std::vector<float>& x);
void native(ddpp::communicator<ddpp::threads>& comm, std::vector<float>& x);
void native(ddpp::communicator<ddpp::shm>& comm, std::vector<float>& x);

}  // namespace part
