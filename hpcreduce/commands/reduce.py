"""stub"""
import click


@click.command("reduce")
def reduce_command() -> int:
    return 0
