// Tests that an edit whose allocations fail changes nothing.
#pragma once

#include <gmock/gmock.h>

#include <new>

#include "allocations.h"
#include "driver.h"

namespace plait {

// Returns the rows of every sequence in every group.
inline std::vector<std::vector<int32_t>> rows_of_all(const Memory& memory) {
    std::vector<std::vector<int32_t>> rows;
    for (uint8_t g = 0; g < memory.layout().groups.size(); ++g)
        for (SequenceId s = 0; s < memory.n_sequences(); ++s) rows.push_back(memory.rows_of(g, s));
    return rows;
}

// Runs `edit` repeatedly: first with its first allocation failing, then with its second, and so on,
// until it succeeds. Checks that each failure changes nothing. Returns the number of allocations.
int expect_all_or_nothing(Driver& driver, auto&& edit) {
    for (int n = 0;; ++n) {
        const auto before = driver.memory->cells();
        const auto rows = rows_of_all(*driver.memory);
        const bool had_shifts = driver.memory->has_shifts();
        try {
            const FailingAllocation failing(n);
            edit();
        } catch (const std::bad_alloc&) {
            EXPECT_EQ(driver.memory->cells(), before) << "allocation " << n;
            EXPECT_EQ(rows_of_all(*driver.memory), rows) << "allocation " << n;
            EXPECT_EQ(driver.memory->has_shifts(), had_shifts);
            EXPECT_THAT(driver.moves, testing::IsEmpty());
            continue;
        }
        driver.carry_out_moves();
        return n;
    }
}

}  // namespace plait
