"""`glassformer plan`: what training a model on many processes takes."""

from typing import Annotated, Literal

import tyro

from glassformer.cli.configs import config_of, notes_of
from glassformer.cli.options import Output
from glassformer.cli.output import check, deliver
from glassformer.config import require


def plan(
    model: Annotated[str, tyro.conf.Positional],
    /,
    gpus: int | None = None,
    mesh: str | None = None,
    length: int | None = None,
    batch: int | None = None,
    accumulate: int = 1,
    precision: Literal["float32", "bfloat16"] = "float32",
    memory: float = 80.0,
    checkpoints: Literal["whole", "shards"] = "whole",
    *,
    output: Output,
) -> None:
    """Plan training on many processes: memory of a rank by part, and bytes that it sends in a step by collective.

    Nothing is allocated and no process is started. Weights are counted of the model, activations of a step without
    numbers, exchanges by formulas, which are printed; what is assumed stands below. Of a model that does not fit it is
    said by how much, and on which meshes it would.

    Examples:
        glassformer plan gpt2-small --gpus 8
        glassformer plan llama3-8b --gpus 64 --mesh dp=8,tp=8 --length 8192 --precision bfloat16
        glassformer plan llama3-8b --mesh dp=4,cp=4 --batch 16 --memory 141 --json plan.json
        glassformer plan llama3-8b --gpus 16 --precision bfloat16 --checkpoints shards

    Args:
        model: A preset (gpt2-small, llama3-8b, …), a shipped model or a folder.
        gpus: Processes, one for each GPU; as many as the mesh has by default.
        mesh: Who shares what: dp=8 shares rows, tp=2 layers, cp=2 positions, and dp=4,tp=2 two of them; all processes
            share rows by default.
        length: Tokens of a row; the model's longest context by default.
        batch: Rows of a step, all ranks' together; by default one a rank, of each part.
        accumulate: Parts of a batch, which run one after another.
        precision: Of the forward pass; weights, gradients and moments are float32.
        memory: GiB that a GPU has.
        checkpoints: What the ranks keep of a run, as `train` takes it: the whole model, which rank 0 holds beside its
            share, or each its shards.
    """
    from glassformer.render.terminal.tables import noted, tables
    from glassformer.training.parallel import Mesh, plan as plan_training
    from glassformer.training.parallel.fitting_meshes import note_of_room

    check(output)
    shape = Mesh(dp=1 if gpus is None else gpus) if mesh is None else Mesh.read(mesh)
    require(
        gpus in (None, shape.size),
        f'mesh "{shape}" takes {shape.size} processes, and --gpus says {gpus}. Give sizes whose product is {gpus}.',
    )
    config = config_of(model)
    found = plan_training(
        config, shape, length=length, batch=batch, accumulate=accumulate, precision=precision, memory=memory,
        checkpoints=checkpoints,
    )  # fmt: skip
    note = note_of_room(config, found)
    found = found if note is None else found.noted(note)
    asked = {
        "model": model, "gpus": shape.size, "mesh": str(shape), "length": found.length, "batch": found.batch,
        "accumulate": accumulate, "precision": precision, "memory": memory, "checkpoints": checkpoints,
    }  # fmt: skip
    shown = [tables(found), *noted(found.notes), *map(str, notes_of(model))]
    deliver("plan", None, asked, [found], output, shown=shown)
