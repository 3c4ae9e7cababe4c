"""What a file asks of Python and of packages is known by its name, or told: SAME rests on nothing else."""

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from perf_tests.user_code.followed import ASKED, MODULES, READS_SOURCE, REFUSED, Uses, between
from perf_tests.user_code.source import Source

NOT_FOLLOWED = (
    "exec(x)", "y = [eval]", "from importlib import import_module\nimport_module(x)",
    "import importlib\nimportlib.import_module('a' + x)", "import importlib\nimportlib.import_module('subprocess')",
    "import importlib.util as u\nu.find_spec('a').loader.get_source('a')", "import os\nos.stat('a.py')",
    "help('a' + b)", "import torch\ntorch._inductor.codecache", "import torch\ntorch.fx.sympy", "open(x)",
    "open(3).read()", "o = open", "import torch\ntorch.load(x)", "A = 'a'\nA = x\nopen(A)",
    "import os\nos.listdir('.' + x)", "import os\ngetattr(os, 'listdir')('.')", "import os\ngetattr(os, x)()",
    "import os\nos.__dict__['x']", "import os\nvars(os)", "exec('1')", "import os\nos.system('ls')",
    "import os\nos.environ[x]", "open('a' + 'b')", "V = 'fast'\nimport importlib\nimportlib.import_module('ops_' + V)",
    "open(f'vocab_{1}')", "getattr(*x)", "open('_'.join(['a', 'b']))", "import os\nos.listdir('shards')",
    "import os\nos.path.isdir('cache')", "A = 'a'\nfrom b import *\nopen(A)", "import a\ngetattr(a, 'read_' + 'text')",
    "import numpy as np\nnp.fromregex(x, y, z)", "import os\ndict(os.environ)", "import os\nos.environ['PYTHONPATH']",
    "from os import environ as e\ndict(e)", "from os import listdir as l\nl('.')", "__builtins__['open']",
    "__path__.append('impl')", "__path__ = ['impl']", "from a import b as __path__", "__package__ = 'tests'",
    "import json\njson.__spec__.loader", "f.__getattribute__('a' + 'b')", "f.__code__.co_varnames",
    "import sys\nsys.path[:0] = ['a']", "import sys as s\ns.path", "from sys import path",
    "import sys\ngetattr(sys, 'path')", "import torch\ntorch.sys.argv", "import sys\nsys.modules['a'] = b",
    "import sys\nsys.modules.get('a')", "import sys\nsys.stderr = x", "import os\nos.utime(x)",
    "import inspect\ninspect.getsource(f)", "from inspect import getdoc", "import inspect\nI = inspect\nI.stack()",
    "from importlib.machinery import x", "import inspect as i\ni.linecache", "import gc\ngc.get_referents(f)",
    "import logging\nlogging.FileHandler(x, 'r')", "import logging.handlers",
    "import warnings\nwarnings.formatwarning(a, b, x, 2)", "import torch._C",
    "import torch\ntorch.serialization._open_file(x)", "import torch\ntorch.ctypes.CDLL(x)", "g = getattr",
    "map(getattr, x, y)", "from operator import attrgetter as a", "globals()", "vars()", "vars(x)['a']",
    "cls.__dict__", "g.gi_frame", "import re\nre = x\nre.open('r')", "type(open('a').raw)(x)",
    "import numpy as np\nnp.load('a', None, True)", "import os\nos.environ['A'] = 'a' + 'b'",
    "import os\nos.environ.setdefault('A', b)", "from torch.utils import benchmark", "import sys\nsys.path",
    "import torch.distributed.checkpoint\ntorch.distributed.checkpoint.a", "import torch\ntorch.utils.data.graph",
    "import torch\nt = torch", "from os import *", "type(license)(x)", "f = open('a')",
    "type(open('a').detach().detach())(x)", "with open('a') as f:\n    type(f.detach().detach())(x)", "g(open('a'))",
    "with open('a') as f:\n    pass\ng(f)", "open('a').__class__(x)",
    "import sys\ntype(sys.stdout.detach().detach())(x)", "import sys\nf = sys.stderr",
    "with open('a') as f:\n    from late import g", "def h():\n    global f\n    with open('a') as f:\n        g()",
    "import json\ndef h():\n    with open('a') as f:\n        json.load(f, object_hook=g)",
    "import importlib.util\nimportlib.util.find_spec('a').loader.path_stats(x)",
    "import importlib.util\ns = importlib.util.find_spec('a')", "import numpy as np\ntype(np.load('a', 'r'))(x)",
    "import torch\ntorch.load('a')", "import os\nos.listdir('/proc/self/cwd')",
    "import torch\ntorch.serialization.get_unsafe_globals_in_checkpoint(x)",
    "from torch.serialization import get_unsafe_globals_in_checkpoint", "import numpy.lib.format as f",
    "import torch.nn.functional as F\nF.torch.save(x)", "from torch import nn\nimport torch\nnn = torch.nn",
    "import hashlib\nhashlib.sha256 = f", "import textwrap as t\nt.dedent = f",
    "import torch\nsetattr(torch.nn.Linear, 'a', f)",
    "import torch\ntorch._inductor.config.post_grad_custom_pre_pass = f",
    "import torch\ntorch._dynamo.config.patch(a=f)", "import torch\ntorch.classes.a", "f.__annotations__['a'] = x",
    "import torch\ntorch.compiler.save_cache_artifacts()",
    "from jaxtyping import Float\nisinstance(x, Float[Tensor, '{f()}'])", "import shutil\nshutil.which('docs' + x, 0)",
    "from functools import partial\nimport shutil\nfind = partial(shutil.which, mode=0)",
    "from shutil import which as find\nfind(x, 0)",
    "from torch.overrides import get_ignored_functions\nread = [*get_ignored_functions()][0]",
    "import torch\ntorch.backends.cudnn.__getattr__('sys').modules",
    "import numpy as np\nnp.__getattr__('test' + 'ing')",
    "import torch\ndef super(): return torch.backends.cudnn\nsuper().__getattr__('sys')", "self.known.__getattr__(x)",
    "import torch\ntorch.ops.aten.__getattr__('from_' + 'file')(x)", "f().__getattr__(x)",
    "super().known.__getattr__(x)", "import torch\ntorch.library.get_kernel('aten::from_' + 'file', 'CPU')",
    "import torch\ntorch.get_device_module('cuda')",
    "import torch\nTEXT = 'open'\ndef f(x: TEXT): pass\ntorch.library.infer_schema(f, mutates_args=())",
    "from torch.library import custom_op\n@custom_op('a::f', mutates_args=())\ndef f(x: 'Call[open]'): pass",
    "from torch.library import custom_op\nTEXT = 'open'\n@custom_op('a::f', mutates_args=())\ndef f(x: TEXT): pass",
    "from torch.library import custom_op\nTensor = 'open'\n@custom_op('a::f', mutates_args=())\ndef f(x: Tensor): pass",
    "from torch.library import custom_op\n@custom_op('a::f', mutates_args=())\ndef f(x: T): pass",
    "from torch.library import custom_op\ncustom_op('a::f', f, mutates_args=())",
    "from torch.library import custom_op as op\n@op('a::f')\ndef f(x: TEXT): pass",
    "import inspect\ninspect.Signature.from_callable(f, **{'eval_' + 'str': True})",
    "from functools import partial\nimport inspect\npartial(inspect.signature, **{'eval_' + 'str': True})(f)",
    "import numpy as np\nnp.save('docs' + x, y)", "import torch\ntorch.save(x, y)", "y.tofile(x)",
    "import logging\nlogging.getLogger().handlers[0]._open()",
    "from shapes import Float\nisinstance(x, Float[Tensor, 'len(f())'])",
    "from jaxtyping import Float\nisinstance(x, Float[Tensor, TEXT])", "from jaxtyping import Float\nFloat[ARGUMENTS]",
    "f.__annotations__", "import torch\ntorch.jit.script(f)", "import functools\nfunctools.update_wrapper(x, f)",
    "from functools import update_wrapper as u\nu(x, f)", "import typing\ntyping.get_overloads(f)",
    "import contextlib\ncontextlib.ExitStack()", "vars(self)", "self.__dict__",
    "import torch\ntorch.save(x, y, _use_new_zipfile_serialization=False)", "import numpy as np\nnp.info(f)",
    "import numpy as np\nnp.bmat('a')", "class A:\n    def __aexit__(self, *given): return f(given)",
    "s = type.__setattr__", "from torch.autograd.function import FunctionMeta\nclass M(FunctionMeta): pass",
    "from torch.autograd.function import FunctionMeta\nM = FunctionMeta",
    "from torch import nn\nclass A(nn.ParameterDict): pass",
    "from torch import nn\nnn.ParameterDict.__getitem__(A, x)",
    "from torch.distributions.utils import lazy_property\nclass A(lazy_property): pass",
    "import numpy as np\nclass A(np.vectorize): pass", "import abc\nclass A(abc.abstractproperty): pass",
    "from functools import update_wrapper as note", "from torch.nn.utils import prune",
    "import os\nos.path.exists('/proc/cpuinfo')", "from torch import nn\na = nn.ParameterDict({})",
    "import torch\ntorch.utils.cpp_extension.load(x)", "exit()", "import torch.jit\ntorch.jit.script(f)",
    "from torch import library", "import torch\ngetattr(torch, 'nn')", "def f(x=open): pass",
    "from torch._inductor.config import triton", "type.__setattr__(A, x, f)", "setattr(f(), y, g)",
    "import layers\nsetattr(layers, x, y)", "import torch as m\ndef f():\n    import layers as m\nm.save(x, y)",
    "import os\nos.environ['A_CACHE_DIR'] = '.'", "import layers as m\ndef f():\n    import torch as m\nm.save(x, y)",
    "import os\nos.environ.setdefault('A_DIR', '.')", "import sys\nsys.modules == x", "import sys\nx in sys.modules",
    "import sys\nx == sys.modules", "import torch\ndef hasattr(m, name): return m\nhasattr(torch, 'x').save(y)",
    "layers.hasattr = f", "import torch\nfrom layers import *\nhasattr(torch, 'x').save(y)",
    "setattr(layers, 'print', f)", "import sys\nfrom layers import *\nprint(x, file=sys.stderr)",
    "import os\nx == os.environ", "import torch\ntorch._inductor.config.cache_dir = '.'", "import torch\ntorch == x",
    "import torch\ntorch.backends.cudnn.benchmark = x", "import torch\nx is y == torch",
    "def f(x=lambda open: 1): return open(x)",
    "def f(open):\n    def g():\n        global open\n        return open(x)",
    "import json\njson = x\njson.load(open('a.json'))", "import json\nfrom a import *\njson.load(open('a.json'))",
    "class A(metaclass=B): pass", "class A(B()): pass", "class A(property): pass",
    "from functools import wraps\nw = wraps(f)", "import functools\n@functools.wraps(f)\n@g\ndef h(): pass",
    "from dataclasses import dataclass\nA = dataclass(A)", "class throw: pass",
    "import warnings\nwarnings.simplefilter('error', Warning, 3)",
    "import warnings\nwarnings.filterwarnings('error', lineno=3)",
    "import warnings\nwarnings.catch_warnings(record=True)", "import warnings\nwarnings.filterwarnings('error', 'a')",
    "import warnings\nwarnings.simplefilter(x)", "import warnings\nwarnings.simplefilter('always')",
    "import torch\ntorch.compile(f, backend=b)",
    "import torch\ntorch.compile(f, options={'a': b})", "import torch\ntorch.compile(f, **b)",
    "class A:\n    def __exit__(self, kind, e, at): return f(e)", "__exit__ = f",
    "class A:\n    @f\n    def __exit__(self, *given): return True", "def throw(self, e): f(e)",
    "from a import f as __exit__", "type(x) == A", "a.__exit__ = f", "setattr(A, '__exit__', f)",
    "type('A', (), {x: f})", "type(int)('A', (), {x: f})", "x.__class__(y)", "t = type",
    "from abc import ABCMeta\nABCMeta('A', (), {'__ex' + 'it__': f})",
    "from types import SimpleNamespace\nclass A(SimpleNamespace): pass", "class A:\n    def __next__(self): return 0",
    "import itertools\nclass A(itertools.count): pass", "class A(map): pass", "self.throw = f", "A(throw=f)",
    "setattr(self, 'throw', f)", "class A:\n    def __reduce_ex__(self, protocol): return f, (), (None, {x: g})",
    "from functools import wraps\n@wraps(f, assigned=('__ex' + 'it__',))\nclass A: pass",
    "from functools import partial\nfrom functools import wraps\n@partial(wraps, assigned=x)(f)\nclass A: pass",
    "from dataclasses import fields\nfields(A)[0].name = x\nastuple(A())",
    "from dataclasses import field\nWIDTH = field(default=1)\nWIDTH.name = x",
    "from dataclasses import field\nclass A:\n    b: int = field(default=1)\nA.b.name = x",
    "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    b: int = field(default=1)\n    f(b)",
    "class A(reversed): pass", "class A:\n    def __setattr__(self, name, value): f(value)",
    "class A:\n    def __setstate__(self, state): f(state)", "from torch.optim.lr_scheduler import LambdaLR",
    "import torch\ntorch.optim.lr_scheduler.LRScheduler.state_dict(A)",
    "from functools import partial\nimport warnings\npartial(warnings.catch_warnings, **{'rec' + 'ord': True})",
    "import warnings\nchoose = warnings.simplefilter\nchoose('error', A, 9)",
    "import warnings\nwarnings.filterwarnings('ignore', **{'line' + 'no': 9})",
    "from warnings import simplefilter as choose\nchoose('error', A, 9)",
    "import warnings\nwarnings.catch_warnings(**x)",
    "from functools import partial\nimport torch\npartial(torch.compile, backend=f)",
    "import torch\nbuild = torch.compile\nbuild(g, backend=f)", "class A(metaclass=f): pass", "class A(**x): pass",
    "class A(zip): pass", "from collections.abc import Generator\nclass A(Generator): pass",
    "model.compile(backend=f)", "f = model.compile", "import torch\n@torch.compile(options=x)\ndef f(): pass",
    "locals()", "T = type[int]\nT('A', (), {x: f})", "class A:\n    def __getattr__(self, name): return f",
    "def f(x: type): type", "class abc: ABCMeta = f\nclass A(metaclass=abc.ABCMeta): pass", "class A(map, B): pass",
    "import torch\ntorch = x\ntry:\n    torch.cuda.init()\nexcept RuntimeError as e:\n    x = str(e)",
    "A.late.attrname = x", "class A(B):\n    def f(self, x): return super().__getattr__(x)",
    "from typing import List, get_args\nget_args(List[x])", "x[0]._evaluate(None, None, frozenset())",
    "import importlib.util\nimportlib.util.find_spec('a') == x", "import shutil\nshutil.which(*x)",
    "import functools\nA.late.attrname = x", "import math as m\ndef g(m): return m.pi.stat(x)",
    "import math as m\nm = x", "from gc import collect\ndef h(collect): collect()", "L = locals()",
    "class K(metaclass=f): pass", "match h:\n    case K(g): g(x)",
    "def f(h):\n    match h:\n        case object(gi_frame=g): g(x)", "nn.Module.get_buffer(h, x)",
    "from torch import nn\nclass A(nn.LSTM): pass",
    "from torch import nn\nnn.LSTM(1, 1).all_weights", "from types import SimpleNamespace\nSimpleNamespace(**x)",
    "import copy\ncopy.deepcopy(x, y)", "import copy\nmap(copy.copy, x)",
    "class A:\n    def __deepcopy__(self, memo): f(memo)", "import warnings\nwarnings.__setattr__('showwarning', f)",
    "x.__setattr__(y, 'a')", "class A:\n    def __exit__(this, kind, self, at): f(self)",
    "class A:\n    def __exit__(*self): f(self)", "class A:\n    def __torch_dispatch__(self, f, *given): f(x)",
    "import warnings\nwarnings.simplefilter('ignore', UserWarning, lineno=8)",
    "class A:\n    def __class_getitem__(cls, x): return f", "model._load_from_state_dict(x, y)",
    "class C:\n    import os as __m\nC._C__m.stat(x)",
    "import os as _C__m\nclass C:\n    def f(self): return __m.stat(x)",
    "x._reduce_ex_internal(2)",
    "import shutil\nfound = x\nshutil.which(found)",
    "import copy\ncopy.deepcopy(x)",
    "from types import SimpleNamespace\nSimpleNamespace(a=1)",
    # What a second stranger found.
    "from importlib.util import find_spec as fs\nfs('a') is None",
    "import importlib.util\nimportlib.util.find_spec('a.b') is None",
    "class C:\n    def f(s): return tools.__o.stat(x)", "def f():\n    global _C__o\n    import os as _C__o",
    "from tools import *\ndef k():\n    import math as m\nm.pi.stat(x)", "import math as m\nfrom tools import *\nm.pi",
    "import warnings\nwarnings.catch_warnings()._module.sys", "import warnings\nwith warnings.catch_warnings() as w: w",
    "m.__init__(**x)", "f.__call__(x)", "import numpy as np\nnp.ndarray((1,), 'O', x)",
    "from torch.compiler import set_stance",
    "from torch.func import functional_call", "from typing import overload", "import shutil\nshutil.which('docs/a')",
    "from jaxtyping import Float\nG = Float\nG[int, x]", "class A:\n    def setup_context(c, i, o): pass",
    # What a third one found.
    "from torch import nn\nclass D(nn.Module, dict): pass", "from dataclasses import asdict\nasdict(x)",
    "from collections import OrderedDict\nclass D(OrderedDict): pass",
    "import torch._dynamo\ntorch._dynamo.graph_break()",
    "open('/proc/self/io').read()", "open('a/../b').read()",
    "setattr(x, 'tofile', f)", "import numpy as np\ndef isinstance(x, kind): return kind\nisinstance(x, np.ndarray)",
)  # fmt: skip
"""Code that may open any file, list a folder, start a program, run text, or have any attribute of anything."""
MAY_READ_SOURCE = (
    "try:\n    f(x)\nexcept A as e:\n    g(e)",
    "try:\n    f(x)\nexcept A as e:\n    g()\n    raise",
    "def h():\n    try:\n        f(x)\n    except A as e:\n        y = e",
    "def h():\n    try:\n        f(x)\n    except A as e:\n        raise B(str(e)) from e",
    "def h():\n    global e\n    try:\n        f(x)\n    except A as e:\n        g()\n        raise",
    "def h():\n    try:\n        f(x)\n    except A as e:\n        (lambda: e)()",
    "import torch\ntry:\n    torch.cuda.init()\nexcept Exception as e:\n    x = str(e)",
    "import torch\ntry:\n    torch.compile(f)\nexcept RuntimeError as e:\n    x = str(e)",
    "f.__doc__", "dir()", "match f:\n    case object(__doc__=text): pass", "getattr(f, '__doc__')",
    "'{0.__doc__}'.format(f)", "x.format(f)", "'{0.lineno}'.format(f)", "str.format(x, f)",
    "import logging\nlogging.getLogger(x).addFilter(f)", "import inspect\ninspect.signature(f)",
    "from inspect import signature\nsignature(f)", "import logging\nlogging.getLogger(__name__).info('a')",
    "import warnings\nwarnings.warn('a', stacklevel=2)", "import warnings\nwarnings.warn(x)",
    "import warnings\nwarnings.warn('a'); warnings.warn('a')", "import warnings\nmap(warnings.warn, x)",
    "[*{f, g}]", "{f(a) for a in b}", "set(x)", "frozenset(x)", "x = set()\nx.add(f)", "sorted(x, key=id)", "hash(f)",
    "f.keys() - g.keys()", "f.items() | {}", "a = f.keys()", "a |= f.keys()", "use(f.keys())", "dict.keys(x) - y",
    "sorted(x, key=repr)", "getattr(self, f'layer{i}')", "setattr(x.y, name, part)", "delattr(x, y)",
    "import torch\ntorch.utils.data.DataLoader(x)",
    "max(x, key=str)", "self.add_module(f'__{a}', part)",
    "from operator import xor\nxor(f, g)", "def list(x): return x\nlist(f.items())",
    "self.add_module(name, part)", "self.register_buffer(name=f'{a}b', tensor=part)",
    "m.register_module('__a__', part)",
    "self.add_module(**given)", "sorted(map(hash, x))", "y = set", "h(default_factory=set)",
    "from weakref import WeakSet\nWeakSet(x)", "a in {f} == {g}", "{f} in a", "seen = set()\nx in seen",
    "def h():\n    seen = set()\n    seen.add(f)\n    return [*seen]",
)  # fmt: skip
"""Code that may read documentation or lines, alone or by what a package does for it, or go through addresses."""
FOLLOWED = (
    "'{}'.format(f)", "import abc\nclass A(metaclass=abc.ABCMeta): pass", "class A(B): pass",
    "import functools\n@functools.wraps(f)\ndef g(): pass",
    "from dataclasses import dataclass\n@dataclass\nclass A: pass", "class A:\n    @property\n    def a(self): pass",
    "import warnings\nwarnings.filterwarnings('ignore', 'a')",
    "import torch\ntorch.compile(f, mode=m, backend='eager')", "setattr(x, 'y', f)", "getattr(self, 'a')",
    "f.__name__", "try:\n    f(x)\nexcept A:\n    pass", "try:\n    f(x)\nexcept A as e:\n    raise B() from e",
    "def h():\n    try:\n        f(x)\n    except A as e:\n        g()\n        raise B() from e",
    "import torch\ntry:\n    torch.cuda.init()\nexcept RuntimeError as e:\n    x = str(e)",
    "class A:\n    def __exit__(self, *given): return True", "type(x) is A", "x.__class__.__name__",
    "def f(x: type[A]): pass", "from abc import ABCMeta as M", "parser.parse_args([], A)",
    "from itertools import count as C", "import io\nclass A(io.StringIO): pass", "from dataclasses import field as f",
    "from warnings import simplefilter as choose", "open('a.json').read()",
    "def f():\n    with open('a') as file:\n        return [a for a in file]",
    "import os\nos.environ['OMP_NUM_THREADS'] = '1'", "def f(x: 'Tensor', y: 'list[int]'): pass",
    "import os\nos.environ.get('CXX', 'g++')", "import os\n'A' in os.environ", "import os\nos.getenv('A')",
    "import importlib.util\nimportlib.util.find_spec('triton') is None", "import torch\ntorch.compile(f)",
    "model.eval()", "import json\nwith open('a') as file:\n    names = json.load(file)", "x.exec_time", "__all__ = []",
    "import sys\n'a' in sys.modules", "from kit.subprocess import a",
    "import torch\ntorch._dynamo.config.verbose = True", "add(help='a')",
    "import torch\nhasattr(torch, 'compile')", "import os\nos.path.join(x, y)", "import json\njson.load(open(b'a'))",
    "import sys\nprint(x, file=sys.stderr)", "import torch.nn.functional as F\nF.gelu(x)",
    "from torch.nn import functional as F\nF.relu(x)", "import torch\ntorch.backends.cudnn.benchmark = True",
    "from einops.layers.torch import Rearrange", "import torch\nq, k = x.chunk(2)\nx.detach().cpu()",
    "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')",
    "import shutil\nshutil.which('ninja')",
    "from dataclasses import dataclass, field\n@dataclass\nclass A:\n    b: list[int] = field(default_factory=list)",
    "import torch\n@torch.compile\ndef f(): pass", "import torch\n@torch.compile(dynamic=False)\ndef f(): pass",
    "def f(x: Namespace): pass", "from abc import ABC, ABCMeta\nclass A(metaclass=ABCMeta): pass",
    "import warnings\nwarnings.simplefilter('ignore')", "import warnings\nwith warnings.catch_warnings():\n    f()",

    "from jaxtyping import Float\ndef f(x: Float[Tensor, '... a b+1']): pass", "x.numpy()", "self.classes = 10",
    "x[()]", "def f(compile, open=None): return compile and open", "def f(format): return format(x=1)",
    "import torch\n@torch.compile(mode=m, backend='eager')\ndef f(): pass", "model.compile(fullgraph=True)",
    "import numpy as np\nif np is None: pass", "import torch\ntorch.__version__",
    "import torch\ntorch._foreach_add_(x, y)", "from torch.optim import AdamW\nclass A(AdamW): pass",
    "from collections import namedtuple\nclass A(namedtuple('A', 'x')): pass",
    "super().__setitem__(x, y)", "object.__setattr__(self, 'a', x)",
    "import warnings\nwarnings.warn('a')\nwarnings.warn(f'a {x}', UserWarning)",
    "import warnings\nwarnings.filterwarnings('ignore', message='a', category=UserWarning)",
    "match x:\n    case int(y): pass", "class A:\n    def __exit__(self, *given): self.done = True",
    "super().__setattr__('a', x)", "import importlib.util\nif importlib.util.find_spec('a'): pass",
    "import os\nimport shutil\ncompiler = os.environ.get('CXX', 'g++')\nshutil.which(compiler)",
    "import copy\ncopy.copy(x)",
    "import numpy as np\ndef f(x: np.ndarray): return isinstance(x, np.ndarray)",
    "from tools import *\nimport math\nmath.pi",
    "x in {f, g}", "def h():\n    seen = {f for f in g}\n    seen.add(f)\n    return x in seen",
    "x not in frozenset(y)", "{'a', 1}", "frozenset({'a', 'b'})", "def f(x: set[int]) -> set: pass",
    "isinstance(x, set)", "x: set[int] = y", "'a' in f.keys()", "set(('a', 'b'))",
    "for k, v in f.items(): x[k] = v", "[k for k in f.keys()]", "x.update(f.items())", "[*f.keys()]", "dict(f.items())",
    "self.keys(x)", "self.add_module(f'block{i}', part)", "self.register_buffer('_mask', part)", "def f(id): return id",
    "class A:\n    def __init__(self): super().__init__()\nclass B(A):\n    def __init__(self): A.__init__(self)",
)  # fmt: skip
"""Code near to these that does neither."""


def uses(code: str) -> Uses:
    return Uses(Source("a.py", f"\n{code}\n".encode()))


@pytest.mark.parametrize("code", NOT_FOLLOWED)
def test_a_name_that_is_not_listed_is_told_with_its_line(code: str) -> None:
    assert all(told.startswith("a.py:") and told.endswith(", which is not followed") for told in uses(code).unknown)
    assert uses(code).unknown


@pytest.mark.parametrize("code", MAY_READ_SOURCE)
def test_what_may_read_source_documentation_lines_or_locals_is_told_as_such(code: str) -> None:
    told = uses(code).reads_source
    assert all(each.startswith("a.py:") and each.endswith(", which may see how it is written") for each in told)
    assert told
    assert uses(code).unknown == []


@pytest.mark.parametrize("code", FOLLOWED)
def test_what_does_neither_is_followed(code: str) -> None:
    assert uses(code).unknown + uses(code).reads_source == []


OF_PACKAGES = frozenset({"_get_index", "forward", "h", "loader", "stat"})


@pytest.mark.parametrize(
    ("code", "is_told"),
    [
        ("x.stat(y)", True), ("getattr(x, 'stat')", True), ("x.loader = y", True),
        ("match x:\n    case object(stat=y): y", True),
        ("class P(A):\n    def _get_index(self, i): return i", True), ("class P(A):\n    _get_index = f", True),
        ("x.forward(y)", False), ("self.h = h", False),
        ("x.block_of_mine", False), ("class P(A):\n    def loader(self): pass", False),
        ("def _get_index(i): return i", False),
    ],
)  # fmt: skip
def test_an_attribute_that_a_loaded_package_has_is_listed_or_told(code: str, is_told: bool) -> None:
    told = Uses(Source("a.py", code.encode()), OF_PACKAGES)
    assert bool(told.reads_source) == is_told
    assert told.unknown == []  # with no source that is written otherwise, no package can see the difference


@pytest.mark.parametrize(
    ("asked", "code", "is_told"),
    [
        ("import os as o", "import tools.o as q\nq.stat(x)", True),
        ("from jaxtyping import Float", "a.Float[int, x]", True),
        ("import torch as t", "tools.t.save(x, y)", True), ("import torch as t", "from tools import t", True),
        ("import torch as t", "from tools import *\nt.save(x)", True), ("import os", "tools.os", True),
        ("class A:\n    import os", "A().os.listdir(x)", True), ("import json", "a.json = x", True),
        ("import json", "setattr(a, 'json', x)", True), ("import torch as t", "getattr(a, 't').save(x)", True),
        ("import torch as t", "match a:\n    case object(t=x): x.save(y)", True),
        ("import torch as t", "from a import *\ndef f(): t = 1\nt.save(x)", True),
        ("import re as c\ndef f():\n    from torch import compile as c", "a.c(f, backend=g)", True),
        ("import torch", "import torch\nfrom a import *\ntorch.ones(x)", False),
        ("from torch import compile", "tools.compile(f, backend=g)", True),
        ("from torch import compile as c", "from tools import c", True), ("import math as m", "tools.other", False),
        ("import copy", "x.copy()", False), ("import math as m", "from tools import *\nm = 1\nm", True),
    ],
)  # fmt: skip
def test_no_file_has_a_module_or_what_is_followed_in_place_from_another(asked: str, code: str, is_told: bool) -> None:
    told = between([uses(asked), Uses(Source("b.py", code.encode()))])
    assert bool(told) == is_told
    assert all(each.endswith(" of another file, which is not followed") for each in told)


@pytest.mark.parametrize(
    ("defined", "code", "is_told"),
    [
        ("class Base: pass", "from a import Base\nclass A(Base): pass", False),
        ("class Base: pass", "from a import Base as B\nclass A(B): pass", False),
        ("class Base: pass", "import a\nclass A(a.Base): pass", False),
        ("Base = map", "from a import Base\nclass A(Base): pass", True),
        ("", "b = B()\nclass A(b): pass", True),
        ("Base = map", "import a\nclass A(a.Base): pass", True),
        ("class Base: pass", "from a import Base\ndef f(Base):\n    class A(Base): pass", True),
        ("class Base: pass", "import a\na.Base = map\nclass A(a.Base): pass", True),
        ("class Base: pass", "from a import Base\nclass A(Base[0]): pass", True),
        ("import torch", "from torch import nn\nclass A(nn.Module): pass", False),
        ("@f\nclass Base: pass", "from a import Base\nclass A(Base): pass", True),
        ("class Base: pass\n@f\ndef Base(): pass", "from a import Base\nclass A(Base): pass", True),
        ("class Base: pass", "from a import Base\nclass A(x.Base): pass", False),
    ],
)
def test_a_class_is_made_of_what_is_a_class_in_every_file(defined: str, code: str, is_told: bool) -> None:
    told = between([uses(defined), Uses(Source("b.py", code.encode()))])
    assert bool(told) == is_told
    assert all(each.endswith(" uses a class of an unknown kind, which is not followed") for each in told)


# The listed names themselves: what they make, and what that has as attributes, was gone through once; this tells what a
# new version of a package makes otherwise.

READERS = re.compile(
    r"CDLL|Popen|__annotations__|__doc__|__import__|attrgetter|co_(filename|firstlineno|varnames)|currentframe|environ"
    r"|eval|exec|exec_module|exists|f_(globals|lineno|locals)|find_spec|fork|format_(exc|exception|stack)|fromfile"
    r"|get(doc|env|file|fullargspec|source|sourcefile|sourcelines|_type_hints)|glob|import_module|is(dir|file)|lineno"
    r"|linecache|listdir|load_library|memmap|open|read_(bytes|text)|scandir|signature|spawn|stat|system|tb_lineno"
    r"|(extract|walk)_stack|walk"
)
KNOWN = {
    "collections.namedtuple", "fractions.Fraction._operator_fallbacks", "functools.cached_property.__init__",
    "importlib.util.find_spec", "json.decoder.JSONDecodeError.__init__", "os.getenv", "posixpath.expanduser",
    "re._constants.error.__init__", "shutil.get_terminal_size", "shutil.which",
    "torch.amp.grad_scaler.GradScaler.step", "torch.autograd.function.Function.apply",
    "torch.nn.functional.interpolate", "torch.nn.functional.max_pool3d_with_indices", "torch.nn.functional.pad",
    "torch.nn.modules.module.Module.__setattr__", "typing._SpecialForm.__init__",
    "typing._SpecialGenericAlias.__init__", "typing_extensions._SpecialForm.__init__",
    "typing_extensions._UnpackSpecialForm.__init__",
}  # fmt: skip
"""What looks at a signature, a variable of a literal name or a line of another file, or copies documentation that
nobody may ask for; each was read."""


def listed(table: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, Any]]:
    """Yield what is listed and installed here, by its name, with the attributes of classes and constants."""
    for module, names in table.items():
        try:
            held = importlib.import_module(module)
        except ImportError:
            continue
        for name in names:
            if (value := getattr(held, name, None)) is not None:
                yield f"{module}.{name}", value
                is_open = not isinstance(value, ModuleType | FunctionType | int | float | str | tuple)
                for part in dir(value) if is_open else ():
                    if part not in REFUSED:
                        yield f"{module}.{name}.{part}", inspect.getattr_static(value, part, None)


def test_no_listed_name_nor_what_it_makes_holds_a_module() -> None:
    held = {name for table in (ASKED, READS_SOURCE) for name, value in listed(table) if isinstance(value, ModuleType)}
    assert held <= MODULES, held - MODULES


def functions(table: Mapping[str, frozenset[str]]) -> Iterator[FunctionType]:
    """Yield those that are listed, and methods of what is, as they were written."""
    for _, value in listed(table):
        parts: list[Any] = (
            [value.fget, value.fset] if isinstance(value, property) else [getattr(value, "__func__", value)]
        )
        yield from (made for each in parts if isinstance(made := inspect.unwrap(each), FunctionType))


def names_in(code: CodeType) -> set[str]:
    inner = (names_in(each) for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*inner)


def test_no_listed_function_nor_a_method_of_what_one_makes_reads_files_or_source() -> None:
    found = {
        f"{function.__module__}.{function.__qualname__}"
        for function in functions(ASKED)
        if any(map(READERS.fullmatch, names_in(function.__code__)))
    }
    assert found - KNOWN == set()
    assert len(found) > 10  # it does see them


def called_by(function: FunctionType) -> Iterator[Any]:
    """Yield what a function may call: of the names in it what its module holds, and what modules there do."""
    names = names_in(function.__code__)
    held = [function.__globals__.get(name) for name in names]
    yield from held
    yield from (vars(module).get(name) for module in held if isinstance(module, ModuleType) for name in names)


def functions_of(value: Any) -> Iterator[FunctionType]:
    """Yield a function as it was written, or those that run where a class is called or entered."""
    special = ("__call__", "__enter__", "__exit__", "__init__", "__new__")
    is_class = isinstance(value, type)
    for part in [vars(kind).get(name) for kind in value.__mro__ for name in special] if is_class else [value]:
        made = getattr(part, "__func__", part)
        if callable(made) and isinstance(made := inspect.unwrap(made), FunctionType):
            yield made


READ_DOCUMENTATION = {
    "collections.namedtuple", "contextlib._GeneratorContextManagerBase.__init__", "dataclasses._process_class",
    "fractions.Fraction._operator_fallbacks", "functools.cached_property.__init__",
}  # fmt: skip
"""All but the second do so where a class is made; that one at each `with`, for which `Source.keeps_documented` is."""


def test_no_listed_function_reads_documentation_two_calls_on() -> None:
    found, seen = set(), set[FunctionType]()
    left = {each for _, value in listed(ASKED) for each in functions_of(value)}
    for _ in range(3):
        found |= {each for each in left if "__doc__" in names_in(each.__code__)}
        seen |= left
        left = {each for function in left for value in called_by(function) for each in functions_of(value)} - seen
    ours = {
        each for each in found if each.__module__.partition(".")[0] not in ("inspect", "typing", "typing_extensions")
    }
    assert {f"{each.__module__}.{each.__qualname__}" for each in ours} == READ_DOCUMENTATION


def has_any_attribute(function: FunctionType) -> bool:
    """Whether it asks for, or sets, attributes by names that do not stand in it, or for all of them."""
    if names_in(function.__code__).isdisjoint({"__dict__", "delattr", "getattr", "setattr", "vars"}):
        return False
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        match node:
            case ast.Attribute(attr="__dict__") | ast.Call(ast.Name("vars")):
                return True
            case ast.Call(ast.Name("delattr" | "getattr" | "setattr"), [_, name, *_]):
                if not isinstance(name, ast.Constant):
                    return True
    return False


COPIES = re.compile(r".*\.(extra_repr|__(deepcopy|dir|getstate|init_subclass|setstate)__)")
HAVE_ANY_ATTRIBUTE = {
    "dataclasses.replace", "functools.cached_property.__get__", "functools.total_ordering",
    "numpy._core.getlimits.finfo.__str__", "torch._tensor.Tensor._clear_non_serializable_cached_data",
    "torch.amp.autocast_mode.autocast.__init__", "torch.nn.attention.flex_attention.BlockMask.to",
    "torch.nn.modules.container.ModuleList.__delitem__", "torch.nn.modules.container.ModuleList.__setitem__",
    "torch.nn.modules.container.ParameterList.__getitem__", "torch.nn.modules.container.ParameterList.__setitem__",
    "torch.nn.modules.container.Sequential.__delitem__", "torch.nn.modules.container.Sequential.__setitem__",
    "torch.nn.modules.module.Module.__getattr__", "torch.nn.modules.module.Module.__setattr__",
    "torch.nn.modules.module.Module.register_buffer", "torch.nn.modules.module.Module.register_parameter",
    "torch.nn.modules.rnn.RNNBase._weights_have_changed", "torch.random.fork_rng",
    "typing.Protocol.__init_subclass__.<locals>._proto_hook", "typing._BaseGenericAlias.__getattr__",
    "typing._BaseGenericAlias.__setattr__", "typing._no_init_or_replace_init", "typing._proto_hook",
    "typing_extensions._SpecialGenericAlias.__setattr__", "typing_extensions._proto_hook",
    "typing_extensions.runtime_checkable",
}  # fmt: skip
"""What has attributes by an index, by names of a class's own fields or of a device; each was read."""


def test_no_listed_function_nor_a_method_of_what_one_makes_has_any_attribute_of_anything() -> None:
    found = {f"{each.__module__}.{each.__qualname__}" for each in functions(ASKED) if has_any_attribute(each)}
    assert {name for name in found if not COPIES.fullmatch(name)} - HAVE_ANY_ATTRIBUTE == set()
    assert len(found) > 20
