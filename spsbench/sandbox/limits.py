"""What a program may use."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one program. Those in seconds are from the start of its interpreter."""

    seconds: float = 3.0  # processor time, rounded up to whole seconds
    memory: int = 1024 * MIB  # bytes of address space
    output: int = 4 * MIB  # bytes printed
    file: int = 16 * MIB  # bytes of one file in its scratch folder

    @property
    def cpu(self) -> int:
        """Whole seconds of processor time, as the kernel counts them."""
        return max(1, -int(-self.seconds // 1))

    @property
    def wall(self) -> float:
        """Seconds on the wall; a little more, so that a busy program is told from a waiting one."""
        return self.cpu + 0.5
