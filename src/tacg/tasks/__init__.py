"""Tasks: problems with graders. The pocket tasks are generated from a seed and need no download."""

from tacg.tasks.base import (
    Grade,
    Problem,
    Task,
    all_names,
    benchmark_names,
    free_names,
    get_task,
    judged_names,
    structured_names,
    task_names,
)

__all__ = [
    "Grade",
    "Problem",
    "Task",
    "all_names",
    "benchmark_names",
    "free_names",
    "get_task",
    "judged_names",
    "structured_names",
    "task_names",
]
