"""The validation layers of Vulkan, which check every call and log violations.

python tests/python/validation.py FOLDER: settings that have them write to FOLDER/log.txt. `./dev validate` sets what
makes them watch, and in PLAIT_TEST_VALIDATION the log, which fails the test that adds to it.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

FOLDERS = ("/usr/share/vulkan", "/etc/vulkan", "/usr/local/share/vulkan")


def are_there() -> bool:
    """Return whether they are installed (Debian: vulkan-validationlayers)."""
    return any(
        Path(p, "explicit_layer.d/VkLayer_khronos_validation.json").is_file() for p in FOLDERS
    )


def settings(log: str | Path) -> str:
    """Return a vk_layer_settings.txt that enables checks of the specification and of data races."""
    return (
        "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n"
        f"khronos_validation.log_filename = {log}\n"
        "khronos_validation.report_flags = error,warn\n"
        "khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT\n"
    )


class _InstanceInfo(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int), ("next", ctypes.c_void_p), ("flags", ctypes.c_uint32),
        ("application", ctypes.c_void_p), ("n_layers", ctypes.c_uint32),
        ("layers", ctypes.c_void_p), ("n_extensions", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    ]  # fmt: skip


def wrong_call() -> None:
    """Make an invalid query of image properties, which active layers report."""
    vulkan = ctypes.CDLL("libvulkan.so.1")
    info, instance = _InstanceInfo(type=1), ctypes.c_void_p()
    assert vulkan.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance)) == 0
    count, device = ctypes.c_uint32(1), ctypes.c_void_p()
    vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), ctypes.byref(device))
    rgba, two_dimensions, optimal, no_use, no_flags = 37, 1, 0, 0, 0
    vulkan.vkGetPhysicalDeviceImageFormatProperties(
        device, rgba, two_dimensions, optimal, no_use, no_flags, (ctypes.c_char * 64)()
    )
    vulkan.vkDestroyInstance(instance, None)


if __name__ == "__main__":
    if not are_there():
        sys.exit("no validation layers (Debian: vulkan-validationlayers)")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_text("")
    (folder / "vk_layer_settings.txt").write_text(settings(folder / "log.txt"))
