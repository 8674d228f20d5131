// A Vulkan device whose calls fail when asked to: the functions that vulkan.hpp calls are replaced
// by ones that count, refuse the one that is asked for, and pass on the others.
#pragma once

#include <cstdint>
#include <utility>

#include "backend/vulkan/vk.h"

namespace plait::test {

using Functions = vulkan::either::DispatchLoaderDynamic;
template <auto One, auto Other>
constexpr bool is_same = false;
template <auto One>
constexpr bool is_same<One, One> = true;

// One call to be refused: the n-th from now on, with that result.
struct Fault {
    static inline int64_t calls_left = -1;
    static inline VkResult result = VK_SUCCESS;
    static inline bool came = false;

    static bool is_next() {
        if (calls_left < 0 || calls_left-- > 0) return false;
        came = true;
        return true;
    }
};

template <auto Function>
struct Hook;
template <typename... A, VkResult (VKAPI_PTR* Functions::*Function)(A...)>
struct Hook<Function> {
    static inline VkResult(VKAPI_PTR* real)(A...) = nullptr;
    static VkResult VKAPI_CALL call(A... a) {
        if (!Fault::is_next()) return real(a...);
        // What was submitted runs on whatever the wait says; nobody must miss its end here. A
        // recording that fails to end has ended all the same.
        if constexpr (is_same<Function, &Functions::vkWaitForFences> ||
                      is_same<Function, &Functions::vkEndCommandBuffer>)
            real(a...);
        return Fault::result;
    }
    static void set() { real = std::exchange(VULKAN_HPP_DEFAULT_DISPATCHER.*Function, &call); }
    static void unset() { VULKAN_HPP_DEFAULT_DISPATCHER.*Function = real; }
};

// While it lives, the n-th call of any of these functions fails.
template <auto... Function>
class FailingCall {
public:
    FailingCall(int64_t n, VkResult result) {
        Fault::calls_left = n;
        Fault::result = result;
        Fault::came = false;
        (Hook<Function>::set(), ...);
    }
    ~FailingCall() {
        (Hook<Function>::unset(), ...);
        Fault::calls_left = -1;
    }
    FailingCall(const FailingCall&) = delete;
    FailingCall& operator=(const FailingCall&) = delete;
};

using CallWithoutMemory =
    FailingCall<&Functions::vkCreateDevice, &Functions::vkCreatePipelineLayout,
                &Functions::vkCreatePipelineCache, &Functions::vkCreateBuffer,
                &Functions::vkAllocateMemory, &Functions::vkBindBufferMemory,
                &Functions::vkMapMemory, &Functions::vkCreateCommandPool,
                &Functions::vkAllocateCommandBuffers, &Functions::vkCreateFence,
                &Functions::vkResetFences, &Functions::vkBeginCommandBuffer,
                &Functions::vkEndCommandBuffer, &Functions::vkCreateShaderModule,
                &Functions::vkCreateComputePipelines, &Functions::vkQueueSubmit>;
using CallThatLosesTheDevice = FailingCall<&Functions::vkQueueSubmit, &Functions::vkWaitForFences>;
using CallOfTheCompiler = FailingCall<&Functions::vkCreateComputePipelines>;

}  // namespace plait::test
