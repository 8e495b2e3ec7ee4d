"""What every kernel needs: a cached JIT and loads from raw addresses.

Arrow data lives in many buffers (pages of a mapped file, segments of a cache, chunks of
waiting rows). Kernels therefore take *addresses* and load unaligned values from them, so one
kernel call can gather across all of them. Nothing here keeps memory alive: callers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .compile_cache import ContentCache, code_folder

F = TypeVar("F", bound=Callable[..., Any])
_CACHE_DIR = code_folder()  # looked for before the first kernel; None: nothing is kept


def jit(function: F) -> F:
    """Compile, and keep what was compiled where nobody else can change it."""
    compiled = numba.njit(nogil=True, error_model="numpy")(function)
    if _CACHE_DIR is not None:
        compiled._cache = ContentCache(function, _CACHE_DIR)
    return cast(F, compiled)


def _loader(numba_type: Any) -> Any:
    @intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            llvm_type = context.get_data_type(numba_type)
            pointer = builder.inttoptr(args[0], ir.PointerType(llvm_type))
            value = builder.load(pointer, typ=llvm_type)
            value.align = 1
            return value

        return numba_type(types.int64), codegen

    return load


def _storer(numba_type: Any) -> Any:
    @intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            llvm_type = context.get_data_type(numba_type)
            pointer = builder.inttoptr(args[0], ir.PointerType(llvm_type))
            builder.store(args[1], pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, numba_type), codegen

    return store


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask the CPU to bring the cache line at `address`; harmless wherever it points."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word, byte_pointer = ir.IntType(32), ir.PointerType(ir.IntType(8))
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], kind)
        pointer = builder.inttoptr(args[0], byte_pointer)
        builder.call(function, [pointer, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


load_u8 = _loader(types.uint8)
load_u16 = _loader(types.uint16)
load_i32 = _loader(types.int32)
load_u32 = _loader(types.uint32)
load_i64 = _loader(types.int64)
load_u64 = _loader(types.uint64)
store_u8 = _storer(types.uint8)
store_u16 = _storer(types.uint16)
store_u32 = _storer(types.uint32)
store_i64 = _storer(types.int64)


@jit
def copy_bytes(target: int, source: int, count: int) -> None:
    """Copy `count` bytes; faster than a call to memcpy for the short strings of master data."""
    if count >= 256:
        for i in range(count >> 3):
            store_i64(target + 8 * i, load_i64(source + 8 * i))
        done = count & ~7
    else:
        done = 0
        while count - done >= 8:
            store_i64(target + done, load_i64(source + done))
            done += 8
    if count - done >= 4:
        store_u32(target + done, load_u32(source + done))
        done += 4
    if count - done >= 2:
        store_u16(target + done, load_u16(source + done))
        done += 2
    if count - done >= 1:
        store_u8(target + done, load_u8(source + done))


@jit
def same_bytes(left: int, right: int, count: int) -> bool:
    done = 0
    while count - done >= 8:
        if load_i64(left + done) != load_i64(right + done):
            return False
        done += 8
    while done < count:
        if load_u8(left + done) != load_u8(right + done):
            return False
        done += 1
    return True
